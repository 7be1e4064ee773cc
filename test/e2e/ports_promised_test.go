package e2e

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// A port that a container was promised, or that an endpoint of its brings, is no other container's.

// promised are rules that promise the container one port of the host.
func promised(port int) []string {
	return []string{
		"--endpoint", fmt.Sprintf("in type ipv4 addr %s port %d", hostAddr4, port), "-i", "0.0.0.0:80=in",
		"--endpoint", fmt.Sprintf("in6 type ipv6 addr %s port %d", hostAddr6, port), "-i", "[::]:80=in6",
	}
}

// A port that a container was promised is not in the ranges of others, now nor after the
// agent was killed, and is there for the one that it was promised.
func TestPromisedPortsInRanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := startDaemon(t, w.h)
	for i, u := range portUsers {
		t.Run(u.name, func(t *testing.T) {
			port := 8050 + i
			has := binder(t, d.graft, "has", append(promised(port), u.flags...))
			takes := binder(t, d.graft, "takes", append(sharing(), u.flags...))
			refused := func() {
				t.Helper()
				for _, network := range []string{"tcp", "udp"} {
					for _, any := range []string{"0.0.0.0", "::"} {
						for _, flags := range []string{"", " reuseport reuseaddr"} {
							takes.want("EADDRINUSE", "bind a %s %s %d v6only%s", network, any, port, flags)
						}
						takes.want("ok 8060", "bind b %s %s 8060", network, any)
						takes.want("ok 0", "close b")
					}
				}
			}
			refused()
			d.kill()
			d.start()
			refused()
			for _, network := range []string{"tcp", "udp"} {
				has.want("ok 80", "bind %s4 %s 0.0.0.0 80", network, network)
				has.want("ok 80", "bind %s6 %s :: 80 v6only", network, network)
				for _, addr := range []string{hostAddr4, hostAddr6} {
					if got := answerAt(t, w.srv, network, net.JoinHostPort(addr, fmt.Sprint(port))); got != "has" {
						t.Errorf("%s %s: %q answers", network, addr, got)
					}
				}
			}
			has.release()
			testkit.Eventually(t, func() error {
				if ps := d.ps(); strings.Contains(ps, "has ") {
					return errors.New(ps)
				}
				return nil
			})
			takes.want(fmt.Sprintf("ok %d", port), "bind a udp 0.0.0.0 %d", port)
			takes.release()
		})
	}
}

// Nor does one get it that asks for any port, although others are taken. Any port is one that
// no socket has.
func TestPromisedPortsAndAnyPort(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := startDaemon(t, w.h)
	ephemeral := func(ports, reserved string) {
		t.Helper()
		err := errors.Join(w.h.SetSysctl("net.ipv4.ip_local_port_range", ports), w.h.SetSysctl("net.ipv4.ip_local_reserved_ports", reserved))
		if err != nil {
			t.Fatal(err)
		}
	}
	// Without the relays' sockets, which come first. Six and not five ports: of an odd number, the
	// kernel does not look at each (inet_csk_find_open_port).
	const few, all = "8050 8055", "32768 60999"
	takes := binder(t, d.graft, "takes", []string{
		"--endpoint", "in type ipv4 addr " + hostAddr4 + " port dynamic", "-i", "0.0.0.0:0=in",
		"--endpoint", "in6 type ipv6 addr " + hostAddr6 + " port dynamic", "-i", "[::]:0=in6",
	})
	takesAll := func(network, any string, want ...string) {
		t.Helper()
		var got []string
		for i := range 5 {
			got = append(got, takes.do("bind %d %s %s 0 v6only reuseport reuseaddr", i, network, any))
		}
		for i, answer := range got {
			if strings.HasPrefix(answer, "ok") {
				takes.want("ok 0", "close %d", i)
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s %s: got %v, want %v", network, any, got, want)
		}
	}
	ephemeral(few, "8054-8055")
	for _, network := range []string{"tcp", "udp"} {
		for _, any := range []string{"0.0.0.0", "::"} {
			takesAll(network, any, "EADDRINUSE", "ok 8050", "ok 8051", "ok 8052", "ok 8053")
		}
	}
	ephemeral(all, "8054-8055")
	has := binder(t, d.graft, "has", promised(8051))
	ephemeral(few, "8054-8055")
	for _, network := range []string{"tcp", "udp"} {
		for _, any := range []string{"0.0.0.0", "::"} {
			takesAll(network, any, "EADDRINUSE", "EADDRINUSE", "ok 8050", "ok 8052", "ok 8053")
		}
		has.want("ok 80", "bind %s %s 0.0.0.0 80", network, network)
	}
	has.release()
	takes.release()
}

// An endpoint that is added is promised its ports like those that were there, and is refused
// those that were promised, or that another container has by now.
func TestPortsOfAddedEndpoints(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := startDaemon(t, w.h)
	comes := binder(t, d.graft, "comes", promised(8050)[:4])
	add := func(want string, port int) {
		t.Helper()
		r := try(t, graftCommand(t, w, d.run, fmt.Sprintf("add in type ipv4 addr %s port %d for comes", hostAddr4, port)))
		if want == "" && r.err != nil || !strings.Contains(r.stderr, want) || strings.Count(r.stderr, "\n") > 1 {
			t.Errorf("graft add at port %d: %v, printed:\n%swant %q", port, r.err, r.stderr, want)
		}
	}
	succeed(t, graftCommand(t, w, d.run, "del in for comes"))
	other := binder(t, d.graft, "other", promised(8050)[:4])
	add("reserved for container other", 8050)
	takes := binder(t, d.graft, "takes", sharing())
	for _, network := range []string{"tcp", "udp"} {
		takes.want("ok 8051", "bind %s %s 0.0.0.0 8051 reuseaddr", network, network)
		add("is taken on the host", 8051)
		takes.want("ok 0", "close %s", network)
	}
	add("", 8051)
	for _, network := range []string{"tcp", "udp"} {
		takes.want("EADDRINUSE", "bind a %s 0.0.0.0 8051 reuseaddr", network)
		comes.want("ok 80", "bind %s %s 0.0.0.0 80", network, network)
		comes.want("ok 0", "close %s", network)
	}
	// What the container has had itself, and another has by now.
	succeed(t, graftCommand(t, w, d.run, "del in for comes"))
	takes.want("ok 8051", "bind a udp 0.0.0.0 8051")
	add("is taken on the host", 8051)
	for _, o := range []*obedient{comes, other, takes} {
		o.release()
	}
}

// Programs that name their endpoints share no ports of others either, and find the next one
// of a range.
func TestPortsOfNamedEndpoints(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := startDaemon(t, w.h)
	program := buildC(t, "static", "testdata/api/api.c")
	for _, u := range portUsers {
		t.Run(u.name, func(t *testing.T) {
			run := func(steps ...string) *testkit.Cmd {
				steps = append([]string{"socket stream", "set 1 15 1"}, steps...) // SO_REUSEPORT
				return d.graft(slices.Concat(apiEndpoints, u.flags, []string{"--", program}, steps)...)
			}
			prints := func(want string, steps ...string) {
				t.Helper()
				if out := succeed(t, run(steps...)); !strings.Contains(out, want) {
					t.Errorf("printed\n%swant %q", out, want)
				}
			}
			has := binder(t, d.graft, "has", append(promised(apiOtherPort)[:4:4], u.flags...))
			first := hold(t, run("bind in4", "listen", "accept"), "listen: ok")
			check := func() {
				t.Helper()
				prints("bind in4: EADDRINUSE", "bind in4")
				prints("bind range: EADDRINUSE", "bind range")
			}
			check()
			d.kill()
			d.start()
			check()
			has.release()
			testkit.Eventually(t, func() error {
				if ps := d.ps(); strings.Contains(ps, "has ") {
					return errors.New(ps)
				}
				return nil
			})
			prints(fmt.Sprintf("name: inet %s %d", hostAddr4, apiOtherPort), "bind range", "set 254 5 1", "name")
			dial(t, w.srv, "tcp", net.JoinHostPort(hostAddr4, fmt.Sprint(apiPort)))
			first.release()
		})
	}
}
