package enforcer

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/policy"
)

// A published server answers the host that has asked it, and no other that has its virtual address
// later.
func TestTranslatedPeerIsAnother(t *testing.T) {
	translating(t, func(c *contained, d *Datagrams) {
		for _, own := range []string{"2001:db8::1/128", "2001:db8::8/128", "2001:db8::9/128"} {
			testkit.AddToLoopback(t, own)
		}
		published, port := netip.MustParseAddrPort("[2001:db8::1]:80"), uint16(20001)
		proxy, server := of(t, c, unix.AF_INET, unix.SOCK_DGRAM), of(t, c, unix.AF_INET, unix.SOCK_DGRAM)
		c.private(t, proxy, unix.IPPROTO_UDP, netip.MustParseAddrPort("0.0.0.0:53"), 20000)
		if _, err := c.PrivatePort(unix.IPPROTO_UDP, 80, 0, port, nil); err != nil {
			t.Fatal(err)
		}
		b := policy.Binding{Host: netip.AddrPortFrom(netip.IPv4Unspecified(), port), View: netip.MustParseAddrPort("0.0.0.0:80"), Private: true, Published: published}
		err := errors.Join(c.AllowBind(server, b), unix.Bind(server, sockaddr.Of(b.Host)), c.Publish(port, published), d.Begin(), d.Attach(loopbackDevice, -1))
		attached(t, err)
		var peers [2]int
		for i, at := range []string{"[2001:db8::8]:5353", "[2001:db8::9]:5353"} {
			peers[i] = of(t, nil, unix.AF_INET6, unix.SOCK_DGRAM)
			if err := unix.Bind(peers[i], sockaddr.Of(netip.MustParseAddrPort(at))); err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.Sendto(peers[0], []byte("ask"), 0, sockaddr.Of(published)); err != nil {
			t.Fatal(err)
		}
		var buf [8]byte
		_, from, err := unix.Recvfrom(server, buf[:], 0)
		if err != nil {
			t.Fatal(err)
		}
		answer := func(text string, want error) {
			t.Helper()
			if err := unix.Sendto(server, []byte(text), 0, from); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", text, err, want)
			}
		}
		answer("answer", nil)
		reads(t, peers[0], "answer")
		virtual := netip.MustParseAddrPort(nameOf(from)).Addr()
		other := VirtualHost{Addr: netip.MustParseAddr("2001:db8::9"), Source: published.Addr(), Device: loopbackDevice}
		if err := d.Put(virtual, other); err != nil {
			t.Fatal(err)
		}
		answer("to another", unix.ENETUNREACH)
	})
}
