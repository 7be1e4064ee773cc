package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// shimModes are those in which the filter lets marked calls pass.
var shimModes = []string{"auto", "preload"}

// A program that speaks like the shim gets where the rules let it, and nowhere
// else.
func TestAttackMarks(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	ip4, ip6 := a.forbidden()
	for _, mode := range shimModes {
		for _, build := range []string{"dynamic", "static"} {
			t.Run(mode+" "+build, func(t *testing.T) {
				flags := inMode(mode, minimal())
				succeed(t, a.attack(build, flags, "marks", allowed4.String(), allowed4.String()))
				allowed, _ := a.arrived()
				for _, way := range []string{"tcp connect", "tcp fastopen sendmmsg", "udp connect", "udp sendmsg"} {
					if !slices.Contains(allowed, way+" ask ask") {
						t.Errorf("%s with marks that ask does not arrive where it may", way)
					}
				}
				succeed(t, a.attack(build, flags, append([]string{"marks", allowed4.String()}, ip4...)...))
				succeed(t, a.attack(build, flags, append([]string{"marks", allowed6.String()}, ip6...)...))
				a.unharmed()
			})
		}
	}
}

// Nor does it where sockets are created on the host first.
func TestAttackMarksOfHostSockets(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	secret4, secret6 := fmt.Sprintf("127.0.0.1:%d", secretPort), fmt.Sprintf("[::1]:%d", secretPort)
	any4, any6 := fmt.Sprintf("0.0.0.0:%d", secretPort), fmt.Sprintf("[::]:%d", secretPort)
	for _, mode := range shimModes {
		succeed(t, a.attack("static", inMode(mode, hostFirst()), "marks", allowed4.String(), secret4, any4))
		succeed(t, a.attack("static", inMode(mode, hostFirst()), "marks", allowed6.String(), secret6, any6))
		a.unharmed()
	}
}

// No mark is a right to a port of the host.
func TestAttackMarkedListen(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	for _, mode := range shimModes {
		for _, rules := range [][]string{minimal(), hostFirst()} {
			h := hold(t, a.attack("static", inMode(mode, rules), "marked-listen", "0.0.0.0:9094", "[::]:9095", "0.0.0.0:0"), "hold")
			a.noListeners()
			for _, port := range []uint16{9094, 9095} {
				if a.taken("tcp", port) || a.taken("udp", port) {
					t.Errorf("%s: the container has the host's port %d", mode, port)
				}
			}
			h.release()
		}
	}
}

// Orders for sockets that are not the shim's are refused, and nobody else is worse
// off.
func TestAttackOrders(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	for _, mode := range shimModes {
		for _, build := range []string{"dynamic", "static"} {
			out := succeed(t, a.attack(build, inMode(mode, hostFirst()), "pairs"))
			for step, results := range steps(out) {
				want := "ok"
				switch {
				case strings.HasPrefix(step, "refused"):
					want = "EAFNOSUPPORT"
				case strings.HasPrefix(step, "decent"):
					want = "4 of 4, 4 came"
				case step == "sent to a refused one":
					want = "-1"
				}
				if !slices.Equal(results, []string{want}) {
					t.Errorf("%s %s: %s: %v, want %s", mode, build, step, results, want)
				}
			}
			if n := len(steps(out)); n < 20 {
				t.Errorf("%s %s: %d steps:\n%s", mode, build, n, out)
			}
		}
	}
}

// The gate sends nothing to another process's server, though the program is
// connected to it.
func TestAttackOrdersForOthers(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	path := filepath.Join(t.TempDir(), "server")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	came := make(chan string, 1)
	go func() {
		c, err := l.AcceptUnix()
		if err != nil {
			came <- err.Error()
			return
		}
		defer c.Close()
		data, control := make([]byte, 64), make([]byte, 1024)
		n, controls, _, _, err := c.ReadMsgUnix(data, control)
		came <- fmt.Sprintf("%q, %d bytes of control messages, %v", data[:n], controls, err)
	}()
	out := succeed(t, a.attack("dynamic", hostFirst(), "pair-of-other", path))
	for step, want := range map[string]string{
		"refused: other's server": "EAFNOSUPPORT", "refused: parent's pair": "EAFNOSUPPORT", "decent": "4 of 4, 4 came",
	} {
		if got := steps(out)[step]; !slices.Equal(got, []string{want}) {
			t.Errorf("%s: %v, want %s", step, got, want)
		}
	}
	if got, want := <-came, `"end", 0 bytes of control messages, <nil>`; got != want {
		t.Errorf("the other's server got %s, want %s", got, want)
	}
}

// Who does not take what it has ordered gets no more; others, and the containers
// beside, have their sockets as if nothing was.
func TestAttackOrdersNotTaken(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	h := hold(t, a.attack("static", hostFirst(), "pair-kept", allowed4.String()), "connections: 100")
	h.await("in vain: -1")
	out := succeed(t, a.attack("dynamic", hostFirst(), "sockets", allowed4.String()))
	if !strings.Contains(out, "failed: 0\n"+parked) {
		t.Errorf("another container: %s", out)
	}
	h.release()
}

// Not even if those who have sent it are held up, and others have taken over. What is
// under way counts against a limit of the whole machine.
func TestAttackOrdersNotTakenAndStuck(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	out := succeed(t, a.attack("static", append(hostFirst(), "--cap-add", "SYS_PTRACE"), "stuck-orders", "20"))
	if out != "under way: 48\n" {
		t.Errorf("printed %q, want one batch under way", out)
	}
}

// Many orders, with pairs that are closed meanwhile, leave nothing in the gate.
func TestAttackManyOrders(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	name := uniqueName("orders")
	h := hold(t, a.attack("static", append(hostFirst(), "--name", name), "orders", "10000"), "hold")
	if got := strings.Join(h.said, "\n"); !strings.Contains(got, "served: some\nsocket: ok") {
		t.Error(got)
	}
	// Of its own, and what it keeps of callers.
	const most = 16
	for _, pid := range membersOf(t, filepath.Join(ownCgroup(t), "tsugiki-"+name, "keepers")) {
		files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil || len(files) > most {
			t.Errorf("process %d has %d descriptors: %v", pid, len(files), err)
		}
	}
	h.release()
}

func membersOf(t *testing.T, group string) []int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(group, "cgroup.procs"))
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for l := range strings.Lines(string(data)) {
		pids = append(pids, atoi(t, l))
	}
	if len(pids) == 0 {
		t.Fatalf("nobody is in %s", group)
	}
	return pids
}

// Nobody but its makers writes on a container's board.
func TestAttackBoard(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	for name, flags := range users {
		out := succeed(t, a.attack("static", append(hostFirst(), flags...), "board"))
		got := steps(out)
		for step, want := range map[string]string{"magic": "ok", "contents": "same"} {
			if !slices.Equal(got[step], []string{want}) {
				t.Errorf("%s: %s: %v, want %s", name, step, got[step], want)
			}
		}
		attempt := regexp.MustCompile("^(given|opened): |^truncated")
		refused := 0
		for step, results := range got {
			if !attempt.MatchString(step) {
				continue
			}
			refused++
			if slices.Contains(results, "ok") {
				t.Errorf("%s: %s: %v", name, step, results)
			}
		}
		if refused < 11 {
			t.Errorf("%s: %d attempts:\n%s", name, refused, out)
		}
	}
}

// Garbage with the shim's marks is but garbage.
func TestAttackMarkedGarbage(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	for i, mode := range shimModes {
		for k, build := range []string{"dynamic", "static"} {
			seed := strconv.Itoa(1000*i + 100*k + 7)
			out := succeed(t, a.attack(build, inMode(mode, withIngress()), "garbage", "2", seed, allowed4.String()))
			if !strings.Contains(out, "survived: ok") {
				t.Errorf("%s %s printed %q", mode, build, out)
			}
		}
	}
	a.unharmed()
	succeed(t, a.attack("dynamic", minimal(), "reach", allowed4.String(), allowed4.String()))
	if allowed, _ := a.arrived(); !slices.Contains(allowed, "tcp connect") {
		t.Error("after that, nothing arrives any more")
	}
}

// What the shim is not in obeys the rules all the same: programs that take it out of
// their environment, static ones, and those whose privileges forbid it.
func TestAttackWithoutShim(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	ip4, _ := a.forbidden()
	setuid := setuidCopy(t, attackProgram(t, "dynamic"))
	for _, mode := range shimModes {
		for name, program := range map[string][]string{
			"cleared": {"/usr/bin/env", "-u", "LD_PRELOAD", attackProgram(t, "dynamic")},
			"static":  {attackProgram(t, "static")},
			"setuid":  {setuid},
		} {
			flags := append(append(inMode(mode, minimal()), "--user", "65534:65534", "--"), program...)
			out := succeed(t, graft(t, a.Host, append(flags, "sockets", allowed4.String())...))
			want := map[string]string{"auto": "failed: 0\n", "preload": "failed: 20\n"}[mode]
			if !strings.Contains(out, want+"parked: no\n") {
				t.Errorf("%s %s: want %q, printed %q", mode, name, want, out)
			}
			succeed(t, graft(t, a.Host, append(append(flags, "marks", allowed4.String()), ip4...)...))
			a.unharmed()
		}
	}
}

// setuidCopy is a program that is root whoever executes it.
func setuidCopy(t *testing.T, program string) string {
	t.Helper()
	copied := filepath.Join(tmpDir, "setuid")
	data, err := os.ReadFile(program)
	if err == nil {
		err = testkit.WriteExecutable(copied, data, 0o755)
	}
	if err == nil {
		err = unix.Chmod(copied, 0o4755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return copied
}
