package relay

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// families lists the address families of the tests.
var families = []struct {
	name   string
	family int
	loop   netip.Addr
}{{"ipv4", unix.AF_INET, loop4}, {"ipv6", unix.AF_INET6, loop6}}

const sentinel = "sentinel"

// onlySentinel fails the test if a server gets something before the sentinel. The sentinel was sent
// last and takes the same path.
func onlySentinel(t *testing.T, who string, conn *net.UDPConn) {
	t.Helper()
	b := make([]byte, 64)
	_ = conn.SetReadDeadline(time.Now().Add(testkit.Patience))
	for {
		n, from, err := conn.ReadFromUDPAddrPort(b)
		if err != nil {
			t.Fatalf("%s waits for the sentinel: %v", who, err)
		}
		if string(b[:n]) == sentinel {
			return
		}
		t.Errorf("%s heard %q from %s", who, b[:n], from)
	}
}

// nothing fails the test if a server has got something by now. The sentinel comes over the loopback
// of the server's namespace.
func nothing(t *testing.T, who string, ns *netns.NS, conn *net.UDPConn) {
	t.Helper()
	at := conn.LocalAddr().(*net.UDPAddr).AddrPort()
	sendFrom(t, ns, netip.AddrPortFrom(at.Addr(), 0), at, sentinel)
	onlySentinel(t, who, conn)
}

// nothingRelayed does the same as nothing for datagrams that would come through the container's
// relay. The sentinel comes through it, too.
func nothingRelayed(t *testing.T, c *container, family int, server *net.UDPConn) {
	t.Helper()
	at := server.LocalAddr().(*net.UDPAddr).AddrPort()
	if err := unix.Sendto(c.hostSocket(t, family), []byte(sentinel), 0, sockaddr(at)); err != nil {
		t.Fatal(err)
	}
	onlySentinel(t, "the container", server)
}

// Servers of the host and of other containers at the same addresses get nothing from a container.
func TestDatagramsStayInTheirContainer(t *testing.T) {
	testkit.CheckLeaks(t)
	host := newHost(t)
	a := newContainer(t, host, "a", 0)
	b := newContainer(t, host, "b", 0)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			at, _ := serve(t, a.own.ns, netip.AddrPortFrom(f.loop, 0))
			ofHost := listen(t, host, at)
			ofB := listen(t, b.own.ns, at)
			fd := a.hostSocket(t, f.family)
			if err := unix.Sendto(fd, []byte("for a"), 0, sockaddr(at)); err != nil {
				t.Fatal(err)
			}
			if _, _, heard := hears(t, fd, testkit.Patience); !heard {
				t.Error("the container's own server did not answer")
			}
			nothing(t, "the host", host, ofHost)
			nothing(t, "another container", b.own.ns, ofB)
		})
	}
}

// A datagram of any other sender to a relay's port is dropped, whatever its source address is, even
// a source that the container had.
func TestStrangersGetNothingThrough(t *testing.T) {
	testkit.CheckLeaks(t)
	host := newHost(t)
	a := newContainer(t, host, "a", 0)
	b := newContainer(t, host, "b", 0)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			server := listen(t, a.own.ns, netip.AddrPortFrom(f.loop, 0))
			at := server.LocalAddr().(*net.UDPAddr).AddrPort()
			end := a.end(t, f.family == unix.AF_INET6)
			alias, _ := end.aliasOf(at)
			to := netip.AddrPortFrom(alias, end.port)
			if end.ip6 {
				to = netip.AddrPortFrom(loop6, end.port)
			}
			// The container has sent from this port.
			fd := a.shortLived(t, f.family)
			if err := unix.Sendto(fd, []byte("x"), 0, sockaddr(at)); err != nil {
				t.Fatal(err)
			}
			if _, _, err := server.ReadFromUDPAddrPort(make([]byte, 8)); err != nil {
				t.Fatal(err)
			}
			port := portOf(t, fd)
			a.closeLast(t, fd)
			for _, from := range strangers(end, at) {
				for _, p := range []uint16{0, port} {
					sendFrom(t, host, netip.AddrPortFrom(from, p), to, "stranger")
				}
			}
			other := b.hostSocket(t, f.family)
			if err := unix.Sendto(other, []byte("stranger"), 0, sockaddr(netip.AddrPortFrom(f.loop, end.port))); err != nil {
				t.Fatal(err)
			}
			if err := unix.Sendto(other, []byte("stranger"), 0, sockaddr(to)); f.family == unix.AF_INET && !errors.Is(err, unix.EPERM) {
				t.Errorf("another container sends to %s: %v, want EPERM", to, err)
			}
			nothingRelayed(t, a, f.family, server)
		})
	}
	// The secret is not enough for a port that the container never had.
	end := a.end(t, false)
	server := listen(t, a.own.ns, netip.AddrPortFrom(loop4, 0))
	alias, _ := end.aliasOf(server.LocalAddr().(*net.UDPAddr).AddrPort())
	sendFrom(t, host, netip.AddrPortFrom(end.secret, 1), netip.AddrPortFrom(alias, end.port), "stranger")
	// The relay then forgets senders without a flow. The sentinel's sender can be one of them.
	a.losesOne(t)
	nothingRelayed(t, a, unix.AF_INET, server)
}

// strangers lists source addresses that a process of the host can use.
func strangers(e *end, server netip.AddrPort) []netip.Addr {
	if e.ip6 {
		// This address differs by one bit from the one that the kernel programs write.
		alias, _ := e.aliasOf(server)
		near := alias.As16()
		near[13] ^= 1
		return []netip.Addr{loop6, host6, netip.AddrFrom16(near)}
	}
	return []netip.Addr{loop4, host4, e.secret.Next()}
}

// sendFrom sends from the host with any source address.
func sendFrom(t *testing.T, ns *netns.NS, from, to netip.AddrPort, text string) {
	t.Helper()
	err := ns.Do(func() error {
		family, level, option := unix.AF_INET, unix.SOL_IP, unix.IP_FREEBIND
		if from.Addr().Is6() {
			family, level, option = unix.AF_INET6, unix.SOL_IPV6, unix.IPV6_FREEBIND
		}
		fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptInt(fd, level, option, 1); err != nil {
			return err
		}
		if err := unix.Bind(fd, sockaddr(from)); err != nil {
			return err
		}
		return unix.Sendto(fd, []byte(text), 0, sockaddr(to))
	})
	if err != nil {
		t.Errorf("send from %s to %s: %v", from, to, err)
	}
}

// An answer that comes after the socket was closed is dropped, even if a process of the host has
// the port by then.
func TestLateAnswersReachNobodyElse(t *testing.T) {
	testkit.CheckLeaks(t)
	host := newHost(t)
	c := newContainer(t, host, "a", time.Hour) // so that no flow ends because it is idle
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			server := listen(t, c.own.ns, netip.AddrPortFrom(f.loop, 0))
			fd := c.shortLived(t, f.family)
			if err := unix.Sendto(fd, []byte("x"), 0, sockaddr(server.LocalAddr().(*net.UDPAddr).AddrPort())); err != nil {
				t.Fatal(err)
			}
			_, client, err := server.ReadFromUDPAddrPort(make([]byte, 8))
			if err != nil {
				t.Fatal(err)
			}
			port := portOf(t, fd)
			c.closeLast(t, fd)
			heir := listen(t, host, netip.AddrPortFrom(f.loop, port))
			if _, err := server.WriteToUDPAddrPort([]byte("late"), client); err != nil {
				t.Fatal(err)
			}
			// The flow ends when the kernel programs have refused to send the answer.
			testkit.Eventually(t, func() error {
				if n := c.flowCount(); n != 0 {
					return errors.New("the flow goes on")
				}
				return nil
			})
			nothing(t, "the host", host, heir)
		})
	}
}

// A client may send and close before the relay has seen the datagram.
func TestSendAndClose(t *testing.T) {
	testkit.CheckLeaks(t)
	c := newContainer(t, newHost(t), "a", 0)
	for _, f := range families {
		server, seen := serve(t, c.own.ns, netip.AddrPortFrom(f.loop, 0))
		for i := range 50 {
			fd := c.shortLived(t, f.family)
			if err := unix.Sendto(fd, []byte("count:1|c"), 0, sockaddr(server)); err != nil {
				t.Fatal(err)
			}
			unix.Close(fd)
			select {
			case <-seen:
			case <-time.After(testkit.Patience):
				t.Fatalf("%s: datagram %d did not arrive", f.name, i)
			}
		}
	}
}
