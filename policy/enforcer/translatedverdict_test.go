package enforcer

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/policy"
)

// A socket remembers that it may send to a host. It does so no more after any change of what the
// verdict depends on: who is behind the virtual address, by which link, and what a name has opened.
func TestTranslatedVerdictIsOutdated(t *testing.T) {
	translating(t, func(c *contained, d *Datagrams) {
		here, err := netns.Current()
		if err != nil {
			t.Fatal(err)
		}
		defer here.Close()
		opening := c.setRules(t, here.Cookie(), nil, []string{"www.example.com:5353"})
		for _, own := range []string{"2001:db8::1/128", "2001:db8::6/128", "2001:db8::9/128"} {
			testkit.AddToLoopback(t, own)
		}
		virtual, to := netip.MustParseAddrPort("198.18.0.1:5353"), netip.MustParseAddr("2001:db8::6")
		opened := func(list []policy.Opening) {
			t.Helper()
			if err := c.SetOpened(to, list); err != nil {
				t.Fatal(err)
			}
		}
		put := func(addr string, device int) {
			t.Helper()
			host := VirtualHost{Addr: netip.MustParseAddr(addr), Source: netip.MustParseAddr("2001:db8::1"), Device: device}
			if err := d.Put(virtual.Addr(), host); err != nil {
				t.Fatal(err)
			}
		}
		proxy, remote := of(t, c, unix.AF_INET, unix.SOCK_DGRAM), of(t, nil, unix.AF_INET6, unix.SOCK_DGRAM)
		c.private(t, proxy, unix.IPPROTO_UDP, netip.MustParseAddrPort("0.0.0.0:53"), 20000)
		plain, connected := of(t, c, unix.AF_INET, unix.SOCK_DGRAM), of(t, c, unix.AF_INET, unix.SOCK_DGRAM)
		opened(opening(0))
		put("2001:db8::6", loopbackDevice)
		attached(t, errors.Join(d.Begin(), d.Attach(loopbackDevice, -1), unix.Connect(connected, sockaddr.Of(virtual)),
			unix.Bind(remote, sockaddr.Of(netip.AddrPortFrom(to, 5353)))))
		send := func(when string, wantPlain, wantConnected error) {
			t.Helper()
			for range 2 { // the second one is remembered
				if err := unix.Sendto(plain, []byte("plain"), 0, sockaddr.Of(virtual)); !errors.Is(err, wantPlain) {
					t.Errorf("%s: sendto: %v, want %v", when, err, wantPlain)
				}
				if _, err := unix.Write(connected, []byte("connected")); !errors.Is(err, wantConnected) {
					t.Errorf("%s: send: %v, want %v", when, err, wantConnected)
				}
				if wantPlain == nil {
					reads(t, remote, "plain")
					reads(t, remote, "connected")
				}
			}
		}
		refused := func(when string) {
			t.Helper()
			send(when, unix.ENETUNREACH, unix.EPERM)
		}
		send("opened", nil, nil)
		opened(nil)
		refused("closed")
		opened(opening(0))
		send("opened again", nil, nil)
		put("2001:db8::9", loopbackDevice)
		refused("another host")
		put("2001:db8::6", loopbackDevice)
		send("the same host again", nil, nil)
		put("2001:db8::6", 0)
		refused("without a way")
		put("2001:db8::6", loopbackDevice)
		send("with a way again", nil, nil)
		// The kernel refuses once to have sockets forget. The next change makes up for it.
		fails := func(host string, device int) {
			t.Helper()
			cgroup := c.cgroup
			c.cgroup = 0
			err := d.Put(virtual.Addr(), VirtualHost{Addr: netip.MustParseAddr(host), Source: netip.MustParseAddr("2001:db8::1"), Device: device})
			if c.cgroup = cgroup; err == nil {
				t.Error("the kernel has changed the row of no container")
			}
		}
		fails("2001:db8::9", loopbackDevice)
		put("2001:db8::9", loopbackDevice)
		refused("another host, after a failure")
		put("2001:db8::6", loopbackDevice)
		send("the same host, after a failure", nil, nil)
		fails("2001:db8::6", 0)
		put("2001:db8::6", 0)
		refused("without a way, after a failure")
	})
}
