package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// listenUDP opens a socket of a namespace.
func listenUDP(t *testing.T, ns *testkit.Namespace, at netip.AddrPort) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	listenAgain(t, ns, func() (err error) {
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	})
	t.Cleanup(func() { c.Close() })
	return c
}

// answerUDP has who sends to a socket answered until the test ends.
func answerUDP(c *net.UDPConn, answer func(from netip.AddrPort)) {
	go func() {
		buf := make([]byte, 512)
		for {
			_, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				return // closed
			}
			answer(from)
		}
	}()
}

// What no rule lets a datagram do, no control message does: take another way, or
// come from elsewhere. Some kernels take source routes and routing headers from
// everybody.
func TestAttackMessages(t *testing.T) {
	t.Parallel()
	for _, to := range []netip.AddrPort{allowed4, allowed6} {
		a := newArena(t)
		for user, as := range users {
			out := succeed(t, a.attack("static", append(minimal(), as...), "packets-message", to.String(), otherRemote6))
			for step, results := range steps(out) {
				want := []string{"EPERM", "EINVAL"}
				if strings.HasPrefix(step, "plain") || strings.HasPrefix(step, "freebind") {
					want = []string{"ok"}
				}
				if len(results) != 1 || !slices.Contains(want, results[0]) {
					t.Errorf("%s, %s: %s: %v, want one of %v", to, user, step, results, want)
				}
			}
			if len(steps(out)) < 6 {
				t.Errorf("%s, %s printed\n%s", to, user, out)
			}
		}
		a.unharmed()
	}
}

// A client hears whom it has asked, and nobody else: not another host, not another
// port, not the host itself. Its port is none that it has chosen, and nobody's else.
func TestAttackClientHears(t *testing.T) {
	t.Parallel()
	const chosen = 51820
	for _, addr := range []struct{ remote, other, any, host string }{
		{remoteAddr4, otherRemote4, "0.0.0.0", hostAddr4}, {remoteAddr6, otherRemote6, "::", hostAddr6},
	} {
		a := newArena(t)
		asked := netip.AddrPortFrom(netip.MustParseAddr(addr.remote), 7777)
		server := listenUDP(t, a.Remote, asked)
		intruders := []*net.UDPConn{
			listenUDP(t, a.Remote, netip.AddrPortFrom(netip.MustParseAddr(addr.other), 7777)),
			listenUDP(t, a.Remote, netip.AddrPortFrom(asked.Addr(), 7778)),
			listenUDP(t, a.Host, netip.AddrPortFrom(netip.MustParseAddr(addr.any), 0)),
		}
		var own bool // whether the host's own process has the port that was chosen
		answerUDP(server, func(from netip.AddrPort) {
			for i, c := range intruders {
				_, _ = c.WriteToUDPAddrPort(fmt.Appendf(nil, "intruder %d", i), from)
			}
			if from.Port() == chosen {
				own = true
			}
			_, _ = server.WriteToUDPAddrPort([]byte("sentinel"), from)
		})
		rule := []string{"-e", fmt.Sprintf("%s=%s", portOf(asked), addr.any)}
		bound := netip.AddrPortFrom(netip.MustParseAddr(addr.any), chosen).String()
		for user, as := range users {
			for _, args := range [][]string{{"packets-ears", asked.String()}, {"packets-ears", asked.String(), bound}} {
				out := succeed(t, a.attack("static", append(slices.Clone(rule), as...), args...))
				if strings.Contains(out, "intruder") || !strings.Contains(out, "dissolved: sentinel") || !strings.Contains(out, "reuses: 1") {
					t.Errorf("%s, %s printed\n%s", user, args, out)
				}
			}
		}
		if own {
			t.Errorf("a client sent from the port %d, which it had chosen", chosen)
		}
	}
}

// portOf writes an address and its port as a rule has them.
func portOf(at netip.AddrPort) string {
	if at.Addr().Is4() {
		return fmt.Sprintf("%s/32:%d", at.Addr(), at.Port())
	}
	return fmt.Sprintf("[%s/128]:%d", at.Addr(), at.Port())
}

// A UDP socket that shares its port shares none with a service of the host.
func TestAttackSharedPort(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	asked := netip.AddrPortFrom(testkit.RemoteAddr4, 7777)
	server := listenUDP(t, a.Remote, asked)
	answerUDP(server, func(from netip.AddrPort) {
		err := a.Host.Do(func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
				return err
			}
			return unix.Bind(fd, &unix.SockaddrInet4{Port: int(from.Port())})
		})
		a.hit("shared", fmt.Sprint(err))
		_, _ = server.WriteToUDPAddrPort([]byte("sentinel"), from)
	})
	for _, as := range users {
		succeed(t, a.attack("static", append([]string{"-e", portOf(asked) + "=0.0.0.0"}, as...), "packets-ears", asked.String()))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.hits) != 1 || !a.hits["shared: "+unix.EADDRINUSE.Error()] {
		t.Errorf("who wants to share the ports of clients gets %v, want %v", a.hits, unix.EADDRINUSE)
	}
}

// A rule's source is for that rule's destinations, whatever the socket was before.
func TestAttackLentSource(t *testing.T) {
	t.Parallel()
	for _, addr := range []struct{ remote, any, host, lent, bits string }{
		{remoteAddr4, "0.0.0.0", hostAddr4, "198.51.100.10", "/24"}, {remoteAddr6, "::", hostAddr6, "2001:db8:1::10", "/64"},
	} {
		a := newArena(t)
		addAddr(t, a.Host, addr.lent+addr.bits, "srv")
		var at []netip.AddrPort
		for _, port := range []uint16{7777, 7778} {
			p := netip.AddrPortFrom(netip.MustParseAddr(addr.remote), port)
			c := listenUDP(t, a.Remote, p)
			answerUDP(c, func(from netip.AddrPort) { _, _ = c.WriteToUDPAddrPort([]byte(from.Addr().String()), from) })
			at = append(at, p)
		}
		// The lent address would be the host's choice too, if it came first.
		rules := []string{"-e", portOf(at[0]) + "=" + addr.lent, "-e", portOf(at[1]) + "=" + addr.host}
		for user, as := range users {
			out := steps(succeed(t, a.attack("static", append(slices.Clone(rules), as...), "packets-lent", netip.AddrPortFrom(netip.MustParseAddr(addr.any), 0).String(), at[0].String(), at[1].String())))
			if !slices.Equal(out["first"], []string{addr.lent}) {
				t.Errorf("%s: the first rule's source is %v, want %s", user, out["first"], addr.lent)
			}
			for way, want := range map[string]string{"dissolved and sent": "EPERM", "sent while connected": "EPERM", "dissolved and connected": addr.host, "bound and sent": addr.host, "bound and connected": addr.host} {
				if !slices.Equal(out[way], []string{want}) {
					t.Errorf("%s, %s: by the second rule %v, want %s", user, way, out[way], want)
				}
			}
		}
	}
}

// Broadcasts of the host's links are for who has a rule that names the broadcast.
func TestAttackBroadcast(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	const limited, subnet = "255.255.255.255:7101", "198.51.100.255:7101"
	for user, as := range users {
		// The host has no route for the limited broadcast.
		for rule, want := range map[string][2]string{"": {"EPERM", "EACCES"}, "255.255.255.255/32=0.0.0.0": {"ENETUNREACH", "ok"}} {
			flags := append([]string{"-e", "0.0.0.0/0=0.0.0.0"}, as...)
			if rule != "" {
				flags = append(flags, "-e", rule)
			}
			out := steppedLines(succeed(t, a.attack("static", flags, "packets-broadcast", limited, subnet)))
			lines := []string{"option: ok", "value: 1", limited + ": " + want[0], subnet + ": " + want[1]}
			if !slices.Equal(out, lines) {
				t.Errorf("%s, with the rule %q, printed %q, want %q", user, rule, out, lines)
			}
			if _, arrived := a.arrived(); rule == "" && len(arrived) > 0 {
				t.Errorf("%s: arrived: %v", user, arrived)
			}
		}
	}
}

// A datagram that waits for its rest (MSG_MORE) goes where it was begun for. The kernel works
// out where connect(2) would lead in the same place, also where that then fails.
func TestAttackCorkedBroadcast(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	broadcast := fmt.Sprintf("198.51.100.255:%d", secretPort)
	for user, as := range users {
		flags := append([]string{"-e", "0.0.0.0/0=0.0.0.0"}, as...)
		out := steppedLines(succeed(t, a.attack("static", flags, "packets-cork", allowed4.String(), broadcast)))
		want := []string{
			"begin: ok", "connect: EACCES", "end: EPERM", "next: ok", "begin again: ok", "connect to it: ok", "end again: ok", "dissolve: ok", "send: ok",
		}
		if !slices.Equal(out, want) {
			t.Errorf("%s printed %q, want %q", user, out, want)
		}
		allowed, forbidden := a.arrived()
		if want := []string{"corked", "last", "next"}; !slices.Equal(allowed, want) || len(forbidden) > 0 {
			t.Errorf("%s: arrived: %q, want %q; and %q", user, allowed, want, forbidden)
		}
	}
}

// Where the host chooses the source of a rule's datagrams, no control message makes that the
// host's loopback: services of the host trust it.
func TestAttackLoopbackSource(t *testing.T) {
	t.Parallel()
	for _, addr := range []struct{ host, any, loopback string }{{hostAddr4, "0.0.0.0", "127.0.0.1"}, {hostAddr6, "::", "::1"}} {
		a := newArena(t)
		to := netip.AddrPortFrom(netip.MustParseAddr(addr.host), secretPort)
		from := netip.AddrPortFrom(netip.MustParseAddr(addr.loopback), 0)
		for user, as := range users {
			flags := append([]string{"-e", portOf(to) + "=" + addr.any}, as...)
			out := steppedLines(succeed(t, a.attack("static", flags, "packets-source", from.String(), to.String())))
			if want := []string{"plain: ok", "from it: EPERM", "plain again: ok"}; !slices.Equal(out, want) {
				t.Errorf("%s, %s printed %q, want %q", to, user, out, want)
			}
			_, arrived := a.arrived()
			if at := "h " + to.String(); len(arrived) != 2 || !strings.HasSuffix(arrived[0], ": plain") || !strings.HasSuffix(arrived[1], ": plain again") {
				t.Errorf("%s, %s: arrived at %s: %q", to, user, at, arrived)
			}
		}
	}
}

// Options that a program of another ABI sets are those that were looked at.
func TestAttackFlippedOption(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	for user, as := range users {
		out := steppedLines(succeed(t, a.attack("static", append(minimal(), as...), "packets-flip")))
		want := []string{
			"harmless ones set: some", "bound to an interface: 0", "time: ok", "time: 7.500",
			"reuse: ok", "device: EPERM", "nowhere: EFAULT",
		}
		if runtime.GOARCH != "amd64" {
			want = []string{"harmless ones set: none", "bound to an interface: 0", "time: ENOSYS", "time: 0.0", "reuse: ENOSYS", "device: ENOSYS", "nowhere: ENOSYS"}
		}
		if !slices.Equal(out, want) {
			t.Errorf("%s printed %q, want %q", user, out, want)
		}
	}
}
