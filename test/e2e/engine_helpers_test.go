package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
)

// engineCase is an engine, and what its container is.
type engineCase struct {
	engine string
	none   bool      // no network but a loopback; else the engine's bridge
	redis  bool      // instead of nginx
	crun   bool      // called by tsugiki-runtime, instead of runc
	setup  bool      // tsugiki setup has told the engine of tsugiki-runtime
	pods   *podsMode // tsugiki-cni attaches its pods
}

var engineCases = []engineCase{
	{engine: "docker", none: true},
	{engine: "docker"},
	{engine: "cri"},
	{engine: "ctr", none: true, redis: true},
	{engine: "podman", none: true, redis: true},
}

// crunCases are engines whose containers crun makes.
var crunCases = []engineCase{
	{engine: "docker", none: true, crun: true},
	{engine: "podman", none: true, redis: true, crun: true},
}

func (c engineCase) String() string {
	name := c.engine + "-bridge"
	if c.none {
		name = c.engine + "-none"
	}
	if c.crun {
		name += "-crun"
	}
	return name
}

// servedPort is the host's port that the rules give to servers.
const servedPort = 8080

// node is a machine with an agent and an engine, which runs containers by
// tsugiki-runtime.
type node struct {
	*world
	engineCase
	engines.Engine
	t     *testing.T // of all that is done with it: what ends the agent
	dir   string     // of the agent's files
	rig   *engines.Rig
	agent *daemon
	unset string // what the file of setupFiles was before tsugiki setup
}

// allowed has the annotations of all containers heard that container makes.
var allowed = []string{
	"[[allow]]", `engines = ["docker", "podman", "containerd", "cri"]`, `names = ["*"]`, `annotations = ["egress", "ingress", "mode", "name"]`,
	`destinations = ["0.0.0.0/0", "::/0"]`,
	fmt.Sprintf("addresses = [%q, %q, %q]", hostAddr4, sourceAddr4, hostAddr6),
}

// newNode starts both. The configuration may name the rig's cgroup, as %s; without an
// [[allow]] of its own it has the one of allowed.
func newNode(t *testing.T, c engineCase, config ...string) *node {
	t.Helper()
	image := needImage(t)
	top := testkit.Build(t, testkit.Options{}) // the bridge is the engine's
	n := &node{world: &world{Topology: top, h: top.Host, srv: top.Remote}, engineCase: c, t: t}
	addAddr(t, n.h, sourceAddr4+"/24", "srv")
	addAddr(t, n.h, otherHostAddr4+"/24", "srv")
	addAddr(t, n.srv, otherRemoteAddr4+"/24", "h")
	// Paths of unix sockets are short: so is this one.
	dir, err := os.MkdirTemp("/tmp", "agent-")
	if err != nil {
		t.Fatal(err)
	}
	n.dir = dir
	t.Cleanup(func() { os.RemoveAll(n.dir) })
	// What tsugiki-runtime reads. Podman does not pass its environment on.
	ofRuntime := fmt.Sprintf("run_dir = %q\n", filepath.Dir(n.socket()))
	if c.crun {
		ofRuntime += fmt.Sprintf("[runtime]\npath = %q\n", crun(t, n.dir))
	}
	options := engines.Options{
		Image:    image,
		Runtimes: map[string]string{"tsugiki": filepath.Join(filepath.Dir(tsugiki), "tsugiki-runtime")},
		Env:      []string{"TSUGIKI_AGENT=" + n.socket()},
		Files:    map[string]string{"/etc/tsugiki/agent.toml": ofRuntime},
	}
	if c.setup {
		options.Runtimes, options.Configured = nil, n.setUp
	}
	if c.pods != nil {
		n.rig = podsRig(t, n.h, *c.pods, options)
	} else {
		n.rig = engines.NewRig(t, n.h, options)
	}
	if !strings.Contains(strings.Join(config, "\n"), "[[allow]]") {
		config = append(config, allowed...)
	}
	configure(t, n.dir, strings.Split(strings.ReplaceAll(strings.Join(config, "\n"), "%s", "/"+filepath.Base(n.rig.Group())), "\n")...)
	n.agent = n.newAgent()
	if c.pods != nil { // it reads the rig's table of pods
		n.agent.rig = n.rig
	}
	n.agent.start()
	n.Engine = n.rig.Start(t, c.engine)
	return n
}

// needImage returns the image that containers of engines are made of. The test is skipped if the
// machine has not what the image takes.
func needImage(t *testing.T) *engines.Image {
	t.Helper()
	image, err := engineImage()
	var needs *testkit.NeedsError
	if errors.As(err, &needs) {
		t.Skipf("skip: %v", needs)
	}
	if err != nil {
		t.Fatal(err)
	}
	return image
}

var engineImage = sync.OnceValues(func() (*engines.Image, error) {
	dir := filepath.Join(tmpDir, "image")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	return engines.BuildImage(dir)
})

func (n *node) socket() string { return api.SocketIn(filepath.Join(n.dir, "run")) }

// newAgent prepares the node's agent, which ends with the test.
func (n *node) newAgent() *daemon {
	d := &daemon{t: n.t, ns: n.h, run: filepath.Join(n.dir, "run"), log: &syncBuffer{}}
	d.args = []string{
		"agent", "--config", filepath.Join(n.dir, "agent.toml"), "--run-dir", d.run, "--state-dir", filepath.Join(n.dir, "state"),
	}
	n.t.Cleanup(d.end)
	return d
}

// container is a grafted one, which serves at servedPort once its program runs,
// and may connect to wherever the prefix is.
func (n *node) container(name, prefix string, port int) engines.Container {
	c := engines.Container{Name: name, Runtime: "tsugiki", None: n.none, Args: engines.Nginx}
	inside := "80"
	if n.redis {
		c.Args, inside = engines.Redis, redisPort
	}
	c.Annotations = map[string]string{
		"tsugiki.dev/ingress": fmt.Sprintf("0.0.0.0:%s=%s:%d", inside, hostAddr4, port),
		"tsugiki.dev/egress":  prefix + "=" + sourceAddr4,
	}
	return c
}

// run runs a container, which is removed with the engine at the latest.
func (n *node) run(t *testing.T, c engines.Container) {
	t.Helper()
	if err := n.Run(c); err != nil {
		t.Fatal(err)
	}
}

// exec runs a program in a container.
func (n *node) exec(t *testing.T, container string, args ...string) string {
	t.Helper()
	out, err := n.Exec(container, args...)
	if err != nil {
		t.Fatalf("%v\nstandard output:\n%s", err, out)
	}
	return out
}

// remove removes a container and checks that the agent knows it no more.
func (n *node) remove(t *testing.T, name string) {
	t.Helper()
	if err := n.Remove(name); err != nil {
		t.Fatal(err)
	}
	n.waitForgotten(t, name)
}

func (n *node) waitForgotten(t *testing.T, name string) {
	t.Helper()
	testkit.Eventually(t, func() error {
		if known := n.known(t, name); known != "" {
			return fmt.Errorf("the agent still knows %s:\n%s", name, known)
		}
		return nil
	})
}

// known is the agent's list of containers, if one of the name is on it.
func (n *node) known(t *testing.T, name string) string {
	t.Helper()
	out := succeed(t, command(t, n.h, tsugiki, "ps", "--agent", n.socket()))
	if n.engine == "cri" {
		name = "default." + name + ".main" // namespace, pod, container
	}
	for _, word := range strings.Fields(out) {
		if word == name {
			return out
		}
	}
	return ""
}

// refused runs a container that must not start, and returns what the engine
// says of it.
func (n *node) refused(t *testing.T, c engines.Container) string {
	t.Helper()
	err := n.Run(c)
	if err == nil {
		t.Errorf("%s has started", c.Name)
	}
	_ = n.Remove(c.Name) // some engines keep what has not started
	n.waitForgotten(t, c.Name)
	return fmt.Sprint(err)
}

// checkServed asks the server of a container, from the remote, and checks whom it
// has seen.
func (n *node) checkServed(t *testing.T, container string, port int) {
	t.Helper()
	if n.redis {
		n.waitRedis(t, port)
		talk := command(t, n.srv, "redis-cli", "-h", hostAddr4, "-p", fmt.Sprint(port))
		talk.Stdin = strings.NewReader(redisTalk)
		checkRedisTalk(t, succeed(t, talk), remoteAddr4)
		return
	}
	url := fmt.Sprintf("http://%s:%d/", hostAddr4, port)
	waitOK(t, n.srv, url)
	if body := curl(t, n.srv, url+"?seen"); body != "hello\n" {
		t.Errorf("got %q", body)
	}
	testkit.Eventually(t, func() error {
		log, err := n.Logs(container)
		if err == nil && !strings.Contains(log, remoteAddr4+" 200 /?seen\n") {
			err = fmt.Errorf("logged:\n%s", log)
		}
		return err
	})
}

func (n *node) waitRedis(t *testing.T, port int) {
	t.Helper()
	testkit.Eventually(t, func() error {
		r := try(t, command(t, n.srv, "redis-cli", "-h", hostAddr4, "-p", fmt.Sprint(port), "ping"))
		if r.stdout != "PONG\n" {
			return fmt.Errorf("redis answers %q, %w", r.stdout, r.err)
		}
		return nil
	})
}

// checkRefused checks that nobody listens on a port of the host.
func (n *node) checkRefused(t *testing.T, port int) {
	t.Helper()
	const couldNotConnect = 7 // of curl
	r := try(t, command(t, n.srv, "curl", "-sS", fmt.Sprintf("http://%s:%d/", hostAddr4, port)))
	if exitStatus(r.err) != couldNotConnect {
		t.Errorf("the remote connects to port %d of the host: %v: %s%s", port, r.err, r.stdout, r.stderr)
	}
}
