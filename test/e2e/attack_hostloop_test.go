package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// hostLoopback are the addresses by which a process of the host reaches its service.
var hostLoopback = map[string][]string{
	allowed4.String(): {"127.0.0.1", "127.5.5.5", "0.0.0.0"},
	allowed6.String(): {"[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:127.5.5.5]", "[::ffff:0.0.0.0]"},
}

// A service of the host's loopback is not on a container's: whichever way a program takes, it is
// refused, as it is where nobody listens. A process of the host gets there by the same ways.
func TestAttackHostLoopback(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	for allowed, addrs := range hostLoopback {
		var targets []string
		for _, addr := range addrs {
			targets = append(targets, fmt.Sprintf("%s:%d", addr, secretPort))
		}
		reach := append([]string{"reach", allowed}, targets...)
		succeed(t, a.bare(reach...))
		if _, arrived := a.arrived(); !containsAll(arrived, "tcp connect", "tcp syscall", "tcp fastopen sendto", "udp sendto", "udp connect", "udp sendmsg") {
			t.Errorf("by some way a process of the host does not reach its own service: %q", arrived)
		}
		for _, run := range []struct{ mode, build string }{{"auto", "dynamic"}, {"auto", "static"}, {"preload", "dynamic"}, {"seccomp", "static"}} {
			for _, rules := range [][]string{minimal(), hostFirst()} {
				out := succeed(t, a.attack(run.build, inMode(run.mode, rules), reach...))
				refused := 0
				for step, results := range steps(out) {
					if strings.Contains(step, "tcp") && !strings.Contains(step, "i386") && !strings.Contains(step, "socketcall") {
						refused++
						if run.mode == "preload" && strings.HasSuffix(step, "syscall") && slices.Equal(results, []string{"EPERM"}) {
							continue // the library has not seen it
						}
						if !slices.Equal(results, []string{"ECONNREFUSED"}) {
							t.Errorf("%v: %s: %v, want ECONNREFUSED", run, step, results)
						}
					}
				}
				if refused < 7*len(targets) {
					t.Errorf("%v: only %d TCP connections were tried:\n%s", run, refused, out)
				}
				a.unharmed()
			}
		}
	}
}

func containsAll(list []string, suffixes ...string) bool {
	for _, s := range suffixes {
		if !slices.ContainsFunc(list, func(l string) bool { return strings.HasSuffix(l, ": "+s) }) {
			return false
		}
	}
	return true
}

// Nor does a source or interface of a control message lead there.
func TestAttackHostLoopbackByMessage(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	for _, at := range [][2]string{
		{secretAt("127.0.0.1"), "127.0.0.1:0"}, {secretAt("127.0.0.1"), hostAddr4 + ":0"}, {secretAt("0.0.0.0"), "127.0.0.1:0"},
		{secretAt("[::1]"), "[::1]:0"}, {secretAt("[::1]"), "[" + hostAddr6 + "]:0"}, {secretAt("[::]"), "[::1]:0"},
	} {
		for _, rules := range [][]string{minimal(), hostFirst()} {
			for _, build := range []string{"static", "dynamic"} {
				succeed(t, a.attack(build, rules, "udp-source", at[0], at[1]))
			}
		}
		a.unharmed()
		succeed(t, a.bare("udp-source", at[0], at[1]))
		if _, arrived := a.arrived(); len(arrived) == 0 {
			t.Errorf("a process of the host does not reach %s from %s", at[0], at[1])
		}
	}
}

func secretAt(addr string) string { return fmt.Sprintf("%s:%d", addr, secretPort) }

// A container whose server closes reaches nobody else at that address: neither a service of the host
// that was there before at the same port, nor one that takes what the server had of the host.
func TestAttackClosedServer(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	traps := map[string]bool{"9100": true, "9101": true, "9102": true}
	for _, port := range []uint16{9100, 9101, 9102} {
		a.trapTCP(a.Host, port)
		a.trapUDP(a.Host, "", port)
	}
	succeed(t, a.bare("reach", allowed4.String(), "127.0.0.1:9100"))
	if _, arrived := a.arrived(); !containsAll(arrived, "tcp connect", "udp sendto") {
		t.Errorf("a process of the host does not reach its own service: %q", arrived)
	}
	for mode, build := range map[string]string{"auto": "dynamic", "seccomp": "static"} {
		p := a.servePrivate(build, "--mode", mode)
		for range testkit.Times(3, 100) {
			for i, at := range privateServers[:3] {
				before := a.hostPorts()
				p.obeys(fmt.Sprintf("close %d", i), fmt.Sprintf("closed: %d", i))
				after := a.hostPorts()
				for _, freed := range before {
					if !slices.Contains(after, freed) && !traps[freed] {
						traps[freed] = true
						a.trapTCP(a.Host, portNumbers(t, []string{freed})[0])
					}
				}
				p.obeys(fmt.Sprintf("call %d", i), "called: ECONNREFUSED")
				p.obeys(fmt.Sprintf("open %d", i), "opened: ok")
				p.obeys(fmt.Sprintf("call %d", i), "called: ok")
				p.calls[at]++
			}
			p.unharmed()
		}
		a.unharmed()
		p.release()
	}
}

// Nor does it while its server opens and closes and somebody on the host takes each port that it lets
// go of, besides the one that it has in the container.
func TestAttackFlickeringServer(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	const number = 9100
	a.trapTCP(a.Host, number)
	succeed(t, a.bare("reach", allowed4.String(), fmt.Sprintf("127.0.0.1:%d", number)))
	if _, arrived := a.arrived(); !containsAll(arrived, "tcp connect") {
		t.Errorf("a process of the host does not reach its own service: %q", arrived)
	}
	for mode, build := range map[string]string{"auto": "dynamic", "seccomp": "static"} {
		for _, at := range []string{"127.0.0.1", "0.0.0.0", "[::1]"} {
			c := a.attack(build, inMode(mode, hostFirst()), "loop-flicker", fmt.Sprintf("%s:%d", at, number), fmt.Sprint(testkit.Times(100, 5000)))
			var r result
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				r = try(t, c)
			}()
			a.takePorts(ended)
			if r.err != nil || r.stdout != "tried: ok\n" {
				t.Errorf("%s, %s: %v, printed\n%s%s", mode, at, r.err, r.stdout, r.stderr)
			}
			a.unharmed()
		}
	}
}

// takePorts listens at each port that a server of the host has had and let go of, until a channel is
// closed.
func (a *arena) takePorts(done chan struct{}) {
	a.t.Helper()
	taken := map[string]bool{}
	for before := a.hostPorts(); ; {
		select {
		case <-done:
			return
		case <-time.After(time.Millisecond):
		}
		now := a.hostPorts()
		for _, port := range before {
			if slices.Contains(now, port) || taken[port] {
				continue
			}
			err := a.listenTrap(a.Host, portNumbers(a.t, []string{port})[0], alone)
			if err != nil && !errors.Is(err, unix.EADDRINUSE) {
				a.t.Fatal(err)
			}
			taken[port] = err == nil
		}
		before = now
	}
}

// obeys has the container do something and compares what it says of it.
func (p *private) obeys(order, want string) {
	p.t.Helper()
	fmt.Fprintln(p.stdin, order)
	p.await(want[:strings.Index(want, ":")+1])
	if got := p.said[len(p.said)-1]; got != want {
		p.t.Errorf("%s: %q, want %q", order, got, want)
	}
}
