package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// users are the flags for those that a program may run as.
var users = map[string][]string{
	"root":  nil,
	"other": {"-u", "65534:65534"},
}

// Neither the container's root nor another user gets hold of the processes that
// serve it, of what they have open, or of the host's namespace.
func TestAttackWalls(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	for name, flags := range users {
		out := succeed(t, a.attack("static", append(minimal(), flags...), "walls", a.Host.Path()))
		if !strings.Contains(out, "helpers: found") {
			t.Errorf("%s: the attack has not found whom to attack:\n%s", name, out)
		}
		for step, results := range steps(out) {
			for _, result := range results {
				if step != "helpers" && !slices.Contains([]string{"EPERM", "EACCES", "ENOENT"}, result) {
					t.Errorf("%s: %s: %s", name, step, result)
				}
			}
		}
	}
}

// A program may kill what serves it, if its user can. Without a keeper it goes on
// as if nothing had happened; root, who can kill the gate as well, ends with it.
func TestAttackKillHelpers(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	for name, flags := range users {
		t.Run(name, func(t *testing.T) {
			r := try(t, a.attack("static", append(minimal(), flags...), "kill", "15", allowed4.String()))
			n := strings.Count(r.stdout, "connect: ok")
			if name == "root" {
				if r.err == nil || !strings.Contains(r.stderr, "the gate was killed") {
					t.Errorf("%v: the container outlives its gate: %s", r.err, r.stderr)
				}
				return
			}
			if got := steps(r.stdout)["connect"]; r.err != nil || n != 60 {
				t.Errorf("%v; connect: %v, ok %d times of 60", r.err, got, n)
				succeed(t, graft(t, a.Host, "--", "true")) // removes what a killed one has left
			}
		})
	}
}

// The container's root moves whoever makes its sockets out of the cgroup in
// which they are policed. What is made then must be policed too, or not be made.
func TestAttackMoveHelpers(t *testing.T) {
	t.Parallel()
	if runtime.GOARCH != "amd64" {
		t.Skip("skip: needs the i386 ABI")
	}
	a := newArena(t)
	procs := filepath.Join(ownCgroup(t), "cgroup.procs")
	r := try(t, a.attack("static", minimal(), "move", procs, fmt.Sprintf("127.0.0.1:%d", secretPort)))
	if strings.Contains(r.stdout, "connect: ok") {
		t.Errorf("connected to the host's loopback:\n%s", r.stdout)
	}
	a.unharmed()
}

// A supervisor that cannot look at a socket does not let it listen.
func TestAttackLimitHelpers(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	name := uniqueName("limit")
	h := hold(t, a.attack("static", append(minimal(), "--name", name), "limit", "0.0.0.0:9093"), "hold")
	a.noListeners()
	if a.taken("udp", 9093) || a.taken("tcp", 9093) {
		t.Error("the container has the host's port 9093")
	}
	_ = h.stdin.Close()
	for h.lines.Scan() {
		continue
	}
	_ = h.Wait() // how tsugiki ends without files is another test's matter
	if group := filepath.Join(ownCgroup(t), "tsugiki-"+name); exists(group) {
		removeCgroup(t, group)
	}
}

// Sockets of the host that a program takes to a network namespace that it made,
// where it is root, are what they were.
func TestAttackNestedNamespace(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	ip4, ip6 := a.forbidden()
	for name, flags := range users {
		h := hold(t, a.attack("static", append(minimal(), flags...), append([]string{"nested", "srv"}, append(ip4, ip6...)...)...), "hold")
		a.noListeners()
		out := steps(strings.Join(h.release(), "\n"))
		for step, want := range map[string]string{"SIOCSIFFLAGS": "EPERM", "SIOCGSKNS": "EPERM", "new sockets are the host's": "no"} {
			if got := out[step]; !slices.Equal(got, []string{want}) {
				t.Errorf("%s: %s: %v, want %s", name, step, got, want)
			}
		}
		a.unharmed()
	}
}

// A program is given no descriptor of those who serve it.
func TestAttackFindsNoFiles(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	bare := succeed(t, command(t, a.Host, attackProgram(t, "static"), "files"))
	if got := succeed(t, a.attack("static", minimal(), "files")); got != bare {
		t.Errorf("a grafted program has\n%sa bare one\n%s", got, bare)
	}
}

// A service of the host's own loopback, behind a wildcard, is not reached by way
// of the host's other addresses unless a rule says so; a rule that covers them
// reaches it, as it would from any other machine.
func TestAttackHostAddressesAreInTheRules(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	target := net.JoinHostPort(hostAddr4, fmt.Sprint(secretPort))
	succeed(t, a.attack("static", minimal(), "reach", allowed4.String(), target))
	a.unharmed()
	rules := []string{"--endpoint", "out type ipv4 addr 0.0.0.0 port dynamic", "-e", "198.51.100.0/24=out"}
	succeed(t, a.attack("static", rules, "reach", allowed4.String(), target))
	if _, reached := a.arrived(); !slices.Contains(reached, "h "+target+": tcp connect") {
		t.Errorf("a rule for the host's own address does not reach it: %v", reached)
	}
}

// ownCgroup is the test's own cgroup v2 directory.
func ownCgroup(t *testing.T) string {
	t.Helper()
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(string(table)) {
		before, after, _ := strings.Cut(l, " - ")
		fields := strings.Fields(before)
		if len(fields) < 5 || !strings.HasPrefix(after, "cgroup2 ") {
			continue
		}
		own, err := os.ReadFile("/proc/self/cgroup")
		if err != nil {
			t.Fatal(err)
		}
		for l := range strings.Lines(string(own)) {
			if path, ok := strings.CutPrefix(strings.TrimSpace(l), "0::"); ok {
				rel, err := filepath.Rel(fields[3], path)
				if err != nil {
					t.Fatal(err)
				}
				return filepath.Join(fields[4], rel)
			}
		}
	}
	testkit.TB(t).Skipf("skip: needs a mounted cgroup v2 hierarchy")
	return ""
}

// A socket that is of no network namespace would reach the machine's host: a program gets none, by
// whatever ABI and mark. Others it gets.
func TestAttackElsewhere(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	bare, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Skipf("skip: needs AF_VSOCK (CONFIG_VSOCKETS): %v", err)
	}
	unix.Close(bare)
	for user, flags := range users {
		for _, mode := range []string{"auto", "preload", "seccomp"} {
			for _, build := range []string{"static", "dynamic"} {
				args := slices.Concat(minimal(), flags, []string{"--mode", mode})
				out := steps(succeed(t, a.attack(build, args, "abi-elsewhere", fmt.Sprint(unix.AF_VSOCK), fmt.Sprint(unix.AF_UNIX))))
				for step, got := range out {
					want := "ok"
					if strings.HasPrefix(step, fmt.Sprint(unix.AF_VSOCK)) {
						want = "EAFNOSUPPORT"
					}
					if runtime.GOARCH != "amd64" && strings.Contains(step, "i386") {
						continue
					}
					if !slices.Equal(got, []string{want}) {
						t.Errorf("%s, %s, %s: family %s: %v, want %s", user, mode, build, step, got, want)
					}
				}
				if len(out) < 12 {
					t.Errorf("%s, %s, %s: only %v was tried", user, mode, build, out)
				}
			}
		}
	}
}
