package e2e

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
)

// walk is a user with a machine that has Docker.
type walk struct {
	*engines.Machine
	*world
	t *testing.T
}

// do runs a program on the machine, which has to succeed.
func (w *walk) do(name string, args ...string) string {
	w.t.Helper()
	out, err := w.Try(name, args...)
	if err != nil {
		w.t.Fatalf("%v\nstandard output:\n%s", err, out)
	}
	return out
}

// says runs a program on the machine, whose output has to match.
func (w *walk) says(re, name string, args ...string) {
	w.t.Helper()
	if out := w.do(name, args...); !regexp.MustCompile(re).MatchString(out) {
		w.t.Errorf("%s %s: no %s in:\n%s", name, strings.Join(args, " "), re, out)
	}
}

// daemonConfig is what the administrator has written. It stays as it is, to the byte.
const daemonConfig = "{\n  \"log-level\" : \"warn\"\n}\n"

// A user of Docker installs the package, has a container grafted, asks why a call failed, upgrades
// the package while the container serves, and purges it. Then the machine is as it was.
func TestWalk(t *testing.T) {
	t.Parallel()
	image := needImage(t)
	top := testkit.Build(t, testkit.Options{})
	w := &walk{engines.NewMachine(t, top.Host), &world{Topology: top, h: top.Host, srv: top.Remote}, t}
	first, second := w.debs(t.TempDir())
	w.do("sh", "-c", "mkdir -p /etc/docker && printf '"+strings.ReplaceAll(daemonConfig, "\n", `\n`)+"' >/etc/docker/daemon.json")
	w.do("systemctl", "start", "docker")
	if err := w.Load(image); err != nil {
		t.Fatal(err)
	}
	before := w.state()

	w.install(first)
	conn := w.graft()
	w.ask()
	w.upgrade(second, conn)
	w.crash(conn)

	w.do("docker", "rm", "-f", "web")
	w.do("tsugiki", "setup", "--undo", "--yes", "docker")
	w.do("dpkg", "--no-triggers", "--purge", "tsugiki")
	testkit.Eventually(t, func() error { // systemd removes the unit and its cgroup after its last process
		if diff := cmp.Diff(before, w.state()); diff != "" {
			return fmt.Errorf("after the purge something is left, or lost (-before +after):\n%s", diff)
		}
		return nil
	})
	w.do("systemctl", "restart", "docker")
	w.says(`^map\[.*runc`, "docker", "info", "-f", "{{.Runtimes}}")
	w.says(`^hello\n$`, "docker", "run", "--rm", "--network", "none", engines.ImageName, "echo", "hello")
}

// debs makes two versions of the package.
func (w *walk) debs(dir string) (first, second string) {
	w.t.Helper()
	first = debOf(w.t, w.h, dir, "0.1")
	tree := filepath.Join(dir, "tree")
	succeed(w.t, command(w.t, w.h, "dpkg-deb", "-R", first, tree))
	control := filepath.Join(tree, "DEBIAN/control")
	text, err := os.ReadFile(control)
	if err != nil {
		w.t.Fatal(err)
	}
	writeFile(w.t, control, regexp.MustCompile(`(?m)^Version: `).ReplaceAllString(string(text), "Version: 1:"))
	second = filepath.Join(dir, "second.deb")
	succeed(w.t, command(w.t, w.h, "dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, second))
	return first, second
}

// install installs the package, and tells Docker and the agent what they have to know.
func (w *walk) install(deb string) {
	w.t.Helper()
	w.do("dpkg", "--no-triggers", "-i", deb)
	w.says(`^active\n$`, "systemctl", "is-active", "tsugiki")
	w.says(`(?m)^tsugiki run works here: `, "tsugiki", "doctor")
	w.says(`(?m)^written; now run: systemctl reload docker$`, "tsugiki", "setup", "--yes", "docker")
	w.do("systemctl", "reload", "docker")
	testkit.Eventually(w.t, func() error { // systemctl does not wait for it
		out, err := w.Try("docker", "info", "-f", "{{json .Runtimes}}")
		if err == nil && !strings.Contains(out, "/usr/bin/tsugiki-runtime") {
			err = fmt.Errorf("the runtimes are %s", out)
		}
		return err
	})
	w.do("sh", "-c", fmt.Sprintf("printf '%%s\\n' '%s' >>/etc/tsugiki/agent.toml", strings.Join(allowed, "' '")))
	agent := w.agent()
	w.do("systemctl", "reload", "tsugiki")
	testkit.Eventually(w.t, func() error { // systemctl does not wait for it
		_, err := w.Try("grep", "-q", "configuration was read again", "/run/services/tsugiki.log")
		return err
	})
	if w.agent() != agent {
		w.t.Error("a reload has started another agent")
	}
}

// graft starts a container, and returns a connection to its server.
func (w *walk) graft() net.Conn {
	w.t.Helper()
	args := append([]string{
		"run", "-d", "--name", "web", "--runtime", "tsugiki", "--network", "none",
		"--label", "tsugiki.dev/ingress=0.0.0.0:" + redisPort + "=" + hostAddr4 + ":" + fmt.Sprint(servedPort),
		"--label", "tsugiki.dev/egress=198.51.100.0/24=" + hostAddr4, engines.ImageName,
	}, engines.Redis...)
	w.do("docker", args...)
	w.says(`(?m)^web +\S+ +running .*`+regexp.QuoteMeta(fmt.Sprintf("%s:%d->0.0.0.0:%s", hostAddr4, servedPort, redisPort)), "tsugiki", "ps")
	observe(w.t, w.srv)
	var conn net.Conn
	testkit.Eventually(w.t, func() error {
		return w.srv.Do(func() (err error) {
			conn, err = net.Dial("tcp", net.JoinHostPort(hostAddr4, fmt.Sprint(servedPort)))
			return err
		})
	})
	w.t.Cleanup(func() { conn.Close() })
	w.works(conn)
	return conn
}

// works checks a connection that is there, and one in each direction that is made now.
func (w *walk) works(conn net.Conn) {
	w.t.Helper()
	if _, err := fmt.Fprint(conn, "PING\r\n"); err != nil {
		w.t.Fatal(err)
	}
	if answer, err := bufio.NewReader(conn).ReadString('\n'); answer != "+PONG\r\n" {
		w.t.Errorf("the connection answers %q, %v", answer, err)
	}
	w.says(`^PONG\n$`, "docker", "exec", "web", "redis-cli", "-h", hostAddr4, "-p", fmt.Sprint(servedPort), "ping")
	w.says("^"+regexp.QuoteMeta(hostAddr4)+"\n$", "docker", "exec", "web", "wget", "-q", "-O", "-", fmt.Sprintf("http://%s:%d/", remoteAddr4, observerPort))
	ask := command(w.t, w.srv, "redis-cli", "-h", hostAddr4, "-p", fmt.Sprint(servedPort), "ping")
	if out := succeed(w.t, ask); out != "PONG\n" {
		w.t.Errorf("a new connection answers %q", out)
	}
}

// ask has a call fail, and has it explained.
func (w *walk) ask() {
	w.t.Helper()
	if out, err := w.Try("docker", "exec", "web", "redis-server", "--port", redisPort, "--bind", "0.0.0.0"); err == nil {
		w.t.Errorf("two servers have one port: %s", out)
	}
	w.says(`(?m) bind +\d+ +0\.0\.0\.0:`+redisPort+` +EADDRINUSE$`, "tsugiki", "denials", "web")
	w.says(`(?s)host's address `+regexp.QuoteMeta(hostAddr4)+fmt.Sprintf(", port %d\n", servedPort)+`rule: -i 0\.0\.0\.0:`+redisPort+`=.*\nwhy: `,
		"tsugiki", "graft", "explain", "web", "bind", "0.0.0.0:"+redisPort)
	if out, err := w.Try("docker", "exec", "web", "wget", "-q", "-O", "-", "http://"+otherRemoteAddr4+"/"); err == nil {
		w.t.Errorf("the container reaches what no rule names: %s", out)
	}
	w.says(regexp.QuoteMeta(fmt.Sprintf(`"%s:%d->0.0.0.0:%s"`, hostAddr4, servedPort, redisPort)), "tsugiki", "inspect", "web")
	w.says(`(?m)^why: no rule covers it$`, "tsugiki", "graft", "explain", "web", "connect", otherRemoteAddr4+":80")
}

// rest waits until no process works for the container: then the next agent finds it by its cgroup
// and its files alone.
func (w *walk) rest() {
	w.t.Helper()
	testkit.Eventually(w.t, func() error {
		out, err := w.Try("sh", "-c", "cat $(find /sys/fs/cgroup -path '*/tsugiki-web-*' -name cgroup.procs)")
		if err == nil && out != "" {
			err = fmt.Errorf("processes in the container's cgroup: %q", out)
		}
		return err
	})
}

// upgrade installs another version. It is another agent that serves the container then.
func (w *walk) upgrade(deb string, conn net.Conn) {
	w.t.Helper()
	w.rest()
	agent, program := w.agent(), w.do("docker", "inspect", "-f", "{{.State.Pid}}", "web")
	w.do("dpkg", "--no-triggers", "-i", deb)
	w.says(`^1:`, "dpkg-query", "-W", "-f", "${Version}", "tsugiki")
	if w.agent() == agent {
		w.t.Error("the agent is the one before the upgrade")
	}
	if now := w.do("docker", "inspect", "-f", "{{.State.Pid}}", "web"); now != program {
		w.t.Errorf("the program is the process %s, was %s", now, program)
	}
	w.says(`(?m)^web +\S+ +running`, "tsugiki", "ps")
	w.works(conn)
}

func (w *walk) agent() string {
	w.t.Helper()
	return w.do("systemctl", "show", "-P", "MainPID", "tsugiki")
}

// crash kills the agent. systemd starts another.
func (w *walk) crash(conn net.Conn) {
	w.t.Helper()
	w.rest()
	agent := w.agent()
	w.do("systemctl", "kill", "--signal", "KILL", "--kill-who", "main", "tsugiki")
	testkit.Eventually(w.t, func() error {
		state, err := w.Try("systemctl", "show", "-p", "MainPID", "-p", "ActiveState", "tsugiki")
		if err == nil && (!strings.Contains(state, "ActiveState=active\n") || strings.Contains(state, "MainPID="+agent)) {
			err = fmt.Errorf("the agent was %s, and is %s", agent, state)
		}
		return err
	})
	w.says(`(?m)^web +\S+ +running`, "tsugiki", "ps")
	w.works(conn)
}

// state is what the package must leave as it was: files, other than those of dpkg and Docker,
// processes, cgroups, pinned BPF programs and units.
func (w *walk) state() map[string]string {
	w.t.Helper()
	files, err := w.Changed()
	if err != nil {
		w.t.Fatal(err)
	}
	for path := range files {
		if strings.HasPrefix(path, "/var/lib/dpkg/") || strings.HasPrefix(path, "/var/log/dpkg") {
			delete(files, path)
		}
	}
	const ours = `find /run/tsugiki; find /run /sys/fs/cgroup /sys/fs/bpf /etc /usr/bin /usr/lib /var -name '*tsugiki*' -not -path '/var/log/*' -not -path '/run/services/*' -not -path '/var/lib/dpkg/*'`
	for what, line := range map[string]string{
		"names":     ours,
		"processes": "ps -e -o comm= | grep tsugiki | sort",
		"units":     "systemctl list-units --all --plain --no-legend '*tsugiki*'; systemctl list-unit-files --no-legend '*tsugiki*'",
		"package":   "dpkg-query -W -f '${Status}' tsugiki 2>&1",
	} {
		out, err := w.Try("sh", "-c", line+" || :")
		if err != nil {
			w.t.Fatal(err)
		}
		files[what] = out
	}
	return files
}

// debOf makes the Debian package of the binaries under test.
func debOf(t *testing.T, ns *testkit.Namespace, dir, version string) string {
	t.Helper()
	root, err := testkit.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), programPatience) // it compresses
	defer cancel()
	build := commandIn(ctx, t, ns, filepath.Join(root, "packaging/deb/build.sh"), filepath.Dir(tsugiki), dir, version)
	build.Env = append(os.Environ(), "DEB_COMPRESSION=none")
	return strings.TrimSpace(succeed(t, build))
}
