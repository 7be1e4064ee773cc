package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// hostFirst are rules by which all IP sockets are created on the host first.
func hostFirst() []string {
	return []string{
		"--endpoint", "out type ipv4 addr 0.0.0.0 port dynamic",
		"--endpoint", "out6 type ipv6 addr :: port dynamic",
		"-e", "0.0.0.0/0=out", "-e", "::/0=out6",
	}
}

func inMode(mode string, flags []string) []string {
	return append([]string{"--mode", mode}, flags...)
}

// parked is what a program prints in which a shim has sockets in advance.
const parked = "parked: yes\n"

// likeBare runs a case of the attack on the host and with the shim, which must
// have been at work, and fails if the program noticed.
func (a *arena) likeBare(t *testing.T, args ...string) {
	t.Helper()
	const none = "parked: no\n"
	bare := succeed(t, command(t, a.Host, attackProgram(t, "dynamic"), args...))
	for _, mode := range []string{"auto", "preload"} {
		flags := append(inMode(mode, hostFirst()), "--", attackProgram(t, "dynamic"))
		got := succeed(t, graft(t, a.Host, append(flags, args...)...))
		if strings.Contains(bare, none) && !strings.Contains(got, parked) {
			t.Errorf("%s %v: the shim has nothing parked:\n%s", mode, args, got)
		}
		if difference := firstDifference(bare, strings.ReplaceAll(got, parked, none)); difference != "" {
			t.Errorf("%s %v: %s", mode, args, difference)
		}
	}
}

// serveEnds is the peer of the attack's forks: it says on a program's "control"
// connection when one of its others has ended.
func (a *arena) serveEnds(t *testing.T) string {
	t.Helper()
	var l net.Listener
	err := a.Remote.Do(func() (err error) {
		l, err = net.Listen("tcp4", remoteAddr4+":0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	var mu sync.Mutex
	controls := map[string]net.Conn{}
	serve := func(c net.Conn) {
		defer c.Close()
		r := bufio.NewReader(c)
		hello := make([]byte, 9)
		if _, err := io.ReadFull(r, hello); err != nil {
			return
		}
		id := string(hello[1:])
		if hello[0] == 'C' {
			mu.Lock()
			controls[id] = c
			mu.Unlock()
			_, _ = c.Write([]byte{'!'}) // it may begin
		}
		_, _ = io.Copy(io.Discard, r)
		if hello[0] == 'D' {
			mu.Lock()
			defer mu.Unlock()
			_, _ = controls[id].Write([]byte{'.'})
		}
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			go serve(c)
		}
	}()
	return l.Addr().String()
}

// A child keeps nothing of its parent's connections, however it was made.
func TestShimChildren(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	peer := a.serveEnds(t)
	for _, kind := range []string{"fork", "vfork", "spawn", "thread", "grandchild", "exec"} {
		t.Run(kind, func(t *testing.T) { a.likeBare(t, "forks", kind, peer) })
	}
	t.Run("daemon", func(t *testing.T) { a.likeBare(t, "daemon", peer) })
	t.Run("system", func(t *testing.T) { a.likeBare(t, "system") })
	t.Run("sockets of a vforked one", func(t *testing.T) { a.likeBare(t, "vfork-sockets", peer) })
	t.Run("storm", func(t *testing.T) { a.likeBare(t, "fork-storm") })
	for _, kind := range []string{"fork", "_Fork", "clone"} {
		t.Run("cookies "+kind, func(t *testing.T) { a.likeBare(t, "cookies", kind) })
	}
}

// Of a child whose making no handler is told of that is true from its first socket
// on.
func TestShimUnknownChildren(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	peer := a.serveEnds(t)
	for _, kind := range []string{"clone", "_Fork"} {
		got := succeed(t, a.attack("dynamic", hostFirst(), "unknown-child", kind, peer))
		for _, w := range []string{parked, "parked in child: 0\n", "ended: all\n"} {
			if !strings.Contains(got, w) {
				t.Errorf("%s: no %q in\n%s", kind, w, got)
			}
		}
	}
}

// Sockets that are made for another destination than theirs are as good as others, and a process makes
// few: it learns from connections to the host's side, and from those to a port of its loopback whose server is
// there (s).
func TestBothWays(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	ls, ss := strings.Repeat("l", 10), strings.Repeat("s", 20)
	for i, c := range []struct {
		steps string
		// The listener's port is so much higher than the server's: about those of one bit (board.h), the
		// agent is asked.
		apart int
		wrong int
	}{
		{ls + "rrr" + ls + ls + ls + "rrrlll", 1, 2},
		{ls + ss, 1, 1},
		{ls + ss, 32, 1},
	} {
		for j, build := range []string{"dynamic", "static"} {
			port := ingressPort + 100*(2*i+j) // one of an earlier container may be in use for a moment
			served, loopback := fmt.Sprint("0.0.0.0:", port), fmt.Sprint("127.0.0.1:", port+c.apart)
			// With a nameable endpoint, the loopback is the container's own.
			flags := append(hostFirst(), "--endpoint", "named type ipv4 addr "+hostAddr4+" port dynamic nameable",
				"--endpoint", fmt.Sprint("in type ipv4 addr 0.0.0.0 port ", port), "-i", served+"=in")
			got := steps(succeed(t, a.attack(build, flags, "both-ways", c.steps, allowed4.String(), loopback, served)))
			want := map[string][]string{"guessed": {"some"}, "wrong guesses": {fmt.Sprint(c.wrong)}, "failed": {"0"}}
			if build == "static" { // the gate does not guess
				want = map[string][]string{"guessed": {"none"}, "wrong guesses": {"0"}, "failed": {"0"}}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s, %s, %d apart (-want +got):\n%s", build, c.steps, c.apart, diff)
			}
		}
	}
}

// Descriptor numbers are the program's: what it closes or puts somewhere is as
// without a shim, and its sockets have the lowest numbers.
func TestShimNumbers(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	for _, how := range []string{"close_range", "raw", "cloexec", "unshare", "closefrom", "loop"} {
		t.Run(how, func(t *testing.T) { a.likeBare(t, "close-all", how) })
	}
	for _, name := range []string{"overwrite", "exec-state", "table"} {
		t.Run(name, func(t *testing.T) { a.likeBare(t, name) })
	}
}

// As many sockets as without a shim.
func TestShimLimits(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	for _, limit := range []string{"8", "64", "225", "226", "300", "1024"} {
		t.Run(limit, func(t *testing.T) {
			a.likeBare(t, "fill", limit)
			a.likeBare(t, "fill", limit, "warm")
		})
	}
}

// The calls leave alone what the C library's do.
func TestShimCalls(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	udp := allowed4.String()
	for _, name := range []string{"errno", "pointers"} {
		t.Run(name, func(t *testing.T) { a.likeBare(t, name, udp) })
	}
	for _, name := range []string{"call-signals", "longjmp", "call-threads"} {
		t.Run(name, func(t *testing.T) { a.likeBare(t, name, udp) })
	}
	a.swallow()
	t.Run("cancel", func(t *testing.T) { a.likeBare(t, "cancel", nowhere) })
}

// Programs in a network namespace of their own making get no sockets of the host.
func TestShimElsewhere(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	for _, mode := range []string{"auto", "preload"} {
		got := succeed(t, a.attack("dynamic", inMode(mode, hostFirst()), "elsewhere"))
		want := []string{parked, "unshare: 0\n", "its child: 0\n", "setns: 0\n", "at home: host's\n"}
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("%s: no %q in\n%s", mode, w, got)
			}
		}
	}
}

// Python closes all descriptors of its children.
func TestShimPython(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	const script = `
import os, socket, subprocess, sys
peer = (sys.argv[1], int(sys.argv[2]))
def use():
    for _ in range(40):
        with socket.create_connection(peer) as s:
            assert os.fstat(s.fileno()).st_mode & 0o170000 == 0o140000
use()
for close in (True, False):
    out = subprocess.run(["ls", "/proc/self/fd"], close_fds=close, capture_output=True, check=True).stdout
    print(close, out.split())
    use()
print("done")
`
	args := []string{python(t), "-c", script, remoteAddr4, fmt.Sprint(allowedPort)}
	bare := succeed(t, command(t, a.Host, args[0], args[1:]...))
	if got := succeed(t, graft(t, a.Host, append(append(hostFirst(), "--"), args...)...)); got != bare {
		t.Errorf("bare\n%s\ngrafted\n%s", bare, got)
	}
}
