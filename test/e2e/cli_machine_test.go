package e2e

import (
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// What the machine does not have is said in one line, and what to do about it.
func TestCLIHostLacks(t *testing.T) {
	t.Parallel()
	top := testkit.Build(t, testkit.Options{NoRemote: true})
	in := func(port int) []string {
		return []string{"--endpoint", fmt.Sprintf("in type ipv4 addr 127.0.0.1 port %d", port), "-i", "0.0.0.0:80=in"}
	}
	err := top.Host.Do(func() error {
		l, err := net.Listen("tcp4", "127.0.0.1:7301")
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		c, err := net.ListenPacket("udp4", "0.0.0.0:7302")
		if err == nil {
			t.Cleanup(func() { c.Close() })
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, r := range []refusal{
		{"namespace by name", []string{"--netns", "no-such-ns"}, 1, []string{"no-such-ns", "ip netns|ip-netns|new"}},
		{"namespace by process", []string{"--netns", "2147483000"}, 1, []string{"2147483000", "process|ip netns|ip-netns|new"}},
		{"namespace by path", []string{"--netns", file}, 1, []string{"file", "no network namespace"}},
		{"the host's namespace", []string{"--netns", "/proc/self/ns/net"}, 1, []string{"host's", "another|new"}},
		{"the host's namespace by another path", []string{"--netns", top.Host.Path()}, 1, []string{"host's", "another|new"}},
		{"namespace of an endpoint", []string{
			"--endpoint", "x type ipv4 addr 0.0.0.0 port dynamic netns no-such-ns", "-e", "0.0.0.0/0=x",
		}, 1, []string{"endpoint x", "no-such-ns"}},
		{"address", []string{"--endpoint", "x type ipv4 addr 203.0.113.99 port 80", "-e", "0.0.0.0/0=x"}, 1, []string{"203.0.113.99", "add it"}},
		{"IPv6 address", []string{"--endpoint", "x type ipv6 addr 2001:db8::99 port 80", "-e", "::/0=x"}, 1, []string{"2001:db8::99", "add it"}},
		{"a free TCP port", in(7301), 1, []string{"TCP", "7301", "taken", "stop|another"}},
		{"a free UDP port", in(7302), 1, []string{"UDP", "7302", "taken", "stop|another"}},
	} {
		t.Run(r.name, func(t *testing.T) { r.check(t, top.Host) })
	}
	for _, name := range []string{"all", "lo"} {
		if err := top.Host.SetSysctl("net.ipv6.conf."+name+".disable_ipv6", "1"); err != nil {
			t.Fatal(err)
		}
	}
	r := refusal{"IPv6", []string{"--endpoint", "x type ipv6 addr ::1 port dynamic", "-e", "::/0=x"}, 1, []string{"endpoint x", "no (address|ipv6)"}}
	t.Run(r.name, func(t *testing.T) { r.check(t, top.Host) })
}

// Names are taken until their containers have ended, by whatever run directory
// they are known.
func TestCLINameInUse(t *testing.T) {
	t.Parallel()
	top := testkit.Build(t, testkit.Options{NoRemote: true})
	dir, name := t.TempDir(), uniqueName("twice")
	first := hold(t, command(t, top.Host, tsugiki, "run", "--run-dir", dir, "--name", name, "--", "sh", "-c", "echo ready; cat"), "ready")
	marker := filepath.Join(t.TempDir(), "marker")
	got := try(t, command(t, top.Host, tsugiki, "run", "--run-dir", dir, "--name", name, "--", "touch", marker))
	refusal{status: 1, says: []string{name, fmt.Sprint(first.Process.Pid), "--name"}}.judge(t, got, marker)
	got = try(t, command(t, top.Host, tsugiki, "run", "--run-dir", t.TempDir(), "--name", name, "--", "touch", marker))
	refusal{status: 1, says: []string{name, "in use|--name"}}.judge(t, got, marker)
	first.release()
	succeed(t, command(t, top.Host, tsugiki, "run", "--run-dir", dir, "--name", name, "--", "touch", marker))
	if _, err := os.Stat(marker); err != nil {
		t.Error("the name is not free again")
	}
}

// inShell runs a script in the host and in a mount namespace of its own. In it,
// $1 is a folder to mount on, $2 tsugiki, $3 a marker that a program would make,
// and $4 where cgroup v2 is mounted.
func inShell(t *testing.T, host *testkit.Namespace, script string) (result, string) {
	t.Helper()
	testkit.Program(t, "unshare")
	marker := filepath.Join(t.TempDir(), "marker")
	mount := cgroupMount(t)
	c := command(t, host, "unshare", "-m", "--propagation", "private", "sh", "-ec", script, "sh", t.TempDir(), tsugiki, marker, mount)
	return try(t, c), marker
}

// cgroupMount is where the v2 hierarchy is mounted.
func cgroupMount(t *testing.T) string {
	t.Helper()
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(string(own)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(l), "0::"); ok {
			return filepath.Clean(strings.TrimSuffix(ownCgroup(t), path))
		}
	}
	return ownCgroup(t)
}

// A machine that is read-only, full, or has no room for files.
func TestCLIMachineLacks(t *testing.T) {
	t.Parallel()
	top := testkit.Build(t, testkit.Options{NoRemote: true})
	for _, tt := range []struct {
		name, script string
		says         []string
	}{
		{"cgroup v2", `umount -l "$4"; exec "$2" run --run-dir "$1" -- touch "$3"`, []string{"cgroup v2", "mount -t cgroup2"}},
		{
			"writable cgroups", `mount --bind "$4" "$4"; mount -o remount,ro,bind "$4"; exec "$2" run --run-dir "$1" -- touch "$3"`,
			[]string{"cgroup", "read-only", "write|rw|mount"},
		},
		{
			"a writable run directory", `mount -t tmpfs -o ro none "$1"; exec "$2" run --run-dir "$1" -- touch "$3"`,
			[]string{"read-only", "--run-dir"},
		},
		{
			"a run directory that can be made", `mount -t tmpfs -o ro none "$1"; exec "$2" run --run-dir "$1/x" -- touch "$3"`,
			[]string{"read-only", "--run-dir"},
		},
		{"a run directory at all", `: > "$1/x"; exec "$2" run --run-dir "$1/x" -- touch "$3"`, []string{"not a directory", "--run-dir"}},
		{
			"room in the run directory",
			`mount -t tmpfs -o size=4k none "$1"; head -c 4096 /dev/zero > "$1/full"; exec "$2" run --run-dir "$1" -- touch "$3"`,
			[]string{"no space", "--run-dir|free"},
		},
		{"files", `ulimit -n 20; exec "$2" run --run-dir "$1" -- touch "$3"`, []string{"too many open files", "ulimit|limit"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, marker := inShell(t, top.Host, tt.script)
			refusal{status: 1, says: tt.says}.judge(t, got, marker)
		})
	}
}

// However few files it may open, it says so and runs nothing by halves. As many as it says it needs are
// enough. With five, Go itself cannot start.
func TestCLIFewFiles(t *testing.T) {
	t.Parallel()
	// Descriptors that the test has been given by its caller are not the program's.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	top := testkit.Build(t, testkit.Options{NoRemote: true})
	const script = `ulimit -n %d; exec "$2" run --run-dir "$1" --endpoint "` + outEndpoint + `" -e 0.0.0.0/0=out -- touch "$3"`
	started, needed := false, regexp.MustCompile(`at least (\d+) are needed`)
	for n, enough := 6, 0; !started; n += 2 {
		got, marker := inShell(t, top.Host, fmt.Sprintf(script, n))
		if started = got.err == nil; started {
			if _, err := os.Stat(marker); err != nil {
				t.Errorf("with %d files: no error and no program", n)
			}
			continue
		}
		refusal{status: 1, says: []string{"too many open files"}}.judge(t, got, marker)
		if said := needed.FindStringSubmatch(got.stderr); said != nil {
			enough, _ = strconv.Atoi(said[1])
		} else if n >= enough && enough > 0 {
			t.Errorf("%d files are not enough", enough)
		}
		if t.Failed() {
			t.Fatalf("that was with %d files", n)
		}
	}
}

// Without root, and without one of its own programs.
func TestCLIInstallation(t *testing.T) {
	t.Parallel()
	top := testkit.Build(t, testkit.Options{NoRemote: true})
	all := binaries(t)
	t.Run("no root", func(t *testing.T) {
		dir := installed(t, all...)
		got := try(t, command(t, top.Host, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all",
			filepath.Join(dir, "tsugiki"), "run", "--run-dir", filepath.Join(dir, "run"), "--", "true"))
		refusal{status: 1, says: []string{"privilege|root", "only root may do this"}}.judge(t, got, filepath.Join(dir, "run"))
	})
	for _, missing := range all {
		if missing != "tsugiki-keeper" && missing != "tsugiki-gate" && missing != "tsugiki-launch" {
			continue
		}
		t.Run(missing, func(t *testing.T) {
			var others []string
			for _, name := range all {
				if name != missing {
					others = append(others, name)
				}
			}
			dir, marker := installed(t, others...), filepath.Join(t.TempDir(), "marker")
			got := try(t, command(t, top.Host, filepath.Join(dir, "tsugiki"), "run", "--run-dir", filepath.Join(dir, "run"), "--", "touch", marker))
			refusal{status: 1, says: []string{missing, dir, "install|make build"}}.judge(t, got, marker)
		})
	}
}
