package enforcer

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// A translated datagram does not leave from a port that an IPv6 socket of the host's has: for its
// receiver, it would be that one's.
func TestTranslatedFromAnothersPort(t *testing.T) {
	translating(t, func(c *contained, d *Datagrams) {
		testkit.AddToLoopback(t, "2001:db8::1/128")
		testkit.AddToLoopback(t, "2001:db8::6/128")
		own, to := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddrPort("[2001:db8::6]:5353")
		virtual := netip.MustParseAddrPort("198.18.0.1:5353")
		proxy := of(t, c, unix.AF_INET, unix.SOCK_DGRAM)
		c.private(t, proxy, unix.IPPROTO_UDP, netip.MustParseAddrPort("0.0.0.0:53"), 20000)
		remote, client := of(t, nil, unix.AF_INET6, unix.SOCK_DGRAM), of(t, c, unix.AF_INET, unix.SOCK_DGRAM)
		err := errors.Join(d.Put(virtual.Addr(), VirtualHost{Addr: to.Addr(), Source: own, Device: loopbackDevice}),
			d.Begin(), d.Attach(loopbackDevice, -1), unix.Bind(remote, sockaddr.Of(to)),
			unix.Bind(client, sockaddr.Of(netip.MustParseAddrPort("0.0.0.0:0"))))
		attached(t, err)
		sa, _ := unix.Getsockname(client)
		from := netip.AddrPortFrom(own, uint16(sa.(*unix.SockaddrInet4).Port))
		send := func(text string) {
			t.Helper()
			if err := unix.Sendto(client, []byte(text), 0, sockaddr.Of(virtual)); err != nil {
				t.Errorf("send %q: %v", text, err)
			}
		}
		send("first")
		heard(t, remote, "first", from)
		host := of(t, nil, unix.AF_INET6, unix.SOCK_DGRAM)
		if err := errors.Join(unix.SetsockoptInt(host, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1), unix.Bind(host, sockaddr.Of(from))); err != nil {
			t.Fatal(err)
		}
		send("not ours")
		closeSocket(t, host)
		send("sentinel")
		heard(t, remote, "sentinel", from)
	})
}
