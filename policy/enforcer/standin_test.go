package enforcer

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
)

// A socket that was let connect to a stand-in gets there, whatever the port is on the container's
// loopback, and has the names that were noted. Without the note, and by the note of another
// container, the port is the container's own.
func TestStandIn(t *testing.T) {
	onLoopback(t, func(list []*contained) {
		c, stranger := list[0], list[2]
		own, peer := netip.MustParseAddrPort("192.0.0.2:21"), netip.MustParseAddrPort("198.18.0.1:40000")
		relay, server := of(t, c, unix.AF_INET, unix.SOCK_STREAM), of(t, c, unix.AF_INET, unix.SOCK_STREAM)
		if err := unix.Bind(relay, sockaddr.Of(netip.MustParseAddrPort("127.0.0.1:0"))); err != nil {
			t.Fatal(err)
		}
		at, err := unix.Getsockname(relay)
		if err != nil {
			t.Fatal(err)
		}
		loopback := netip.MustParseAddrPort(nameOf(at))
		port := loopback.Port()
		c.private(t, server, unix.IPPROTO_TCP, netip.AddrPortFrom(netip.IPv4Unspecified(), port), 20000)
		if err := errors.Join(unix.Listen(relay, 4), unix.Listen(server, 4)); err != nil {
			t.Fatal(err)
		}
		connect := func(by *contained, listener int) int {
			t.Helper()
			s := of(t, c, unix.AF_INET, unix.SOCK_STREAM)
			if by != nil {
				if err := by.StandIn(s, port, own, peer); err != nil {
					t.Fatal(err)
				}
			}
			if err := unix.Connect(s, sockaddr.Of(loopback)); err != nil {
				t.Fatal(err)
			}
			accept(t, listener)
			return s
		}
		for name, s := range map[string]int{
			"without a note":           connect(nil, server),
			"another container's note": connect(stranger, server),
		} {
			if _, remote := names2(t, s); remote != loopback.String() {
				t.Errorf("%s: the peer is %s, want %s", name, remote, loopback)
			}
		}
		s := connect(c, relay)
		if local, remote := names2(t, s); local != own.String() || remote != peer.String() {
			t.Errorf("%s is connected to %s, want %s and %s", local, remote, own, peer)
		}
		if err := c.StandIn(s, port, netip.AddrPortFrom(own.Addr(), 0), peer); err != nil {
			t.Fatal(err)
		}
		if local, _ := names2(t, s); local == own.String() || netip.MustParseAddrPort(local).Addr() != own.Addr() {
			t.Errorf("%s is its name, want its own port", local)
		}
	})
}
