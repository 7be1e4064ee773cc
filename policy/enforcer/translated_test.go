package enforcer

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// What is sent to a virtual address reaches no service of the host's, where the programs at the links
// do not translate it: it is refused unless the DNS proxy is there, which ends before they do. With
// the proxy and without them, the service would hear it.
func TestNobodyTranslates(t *testing.T) {
	containers(t, func(_ uint64, list []*contained) {
		c := list[0]
		if err := c.UseLoopback(7); err != nil {
			t.Fatal(err)
		}
		d, err := c.TranslateDatagrams()
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		virtual := netip.MustParseAddrPort("198.18.0.1:5353")
		remote := VirtualHost{Addr: netip.MustParseAddr("2001:db8::6"), Source: netip.MustParseAddr("2001:db8::1"), Device: loopbackDevice}
		service, client := of(t, nil, unix.AF_INET, unix.SOCK_DGRAM), of(t, c, unix.AF_INET, unix.SOCK_DGRAM)
		err = errors.Join(d.Put(virtual.Addr(), remote), d.Begin(),
			unix.Bind(service, sockaddrOf(netip.AddrPortFrom(netip.IPv4Unspecified(), virtual.Port()))))
		if err != nil {
			t.Fatal(err)
		}
		send := func(text string, want error) {
			t.Helper()
			if err := unix.Sendto(client, []byte(text), 0, sockaddrOf(virtual)); !errors.Is(err, want) {
				t.Errorf("send %q: %v, want %v", text, err, want)
			}
		}
		send("without the proxy", unix.EPERM)
		proxy := of(t, c, unix.AF_INET, unix.SOCK_DGRAM)
		c.private(t, proxy, unix.IPPROTO_UDP, netip.MustParseAddrPort("0.0.0.0:53"), 20000)
		send("sentinel", nil)
		reads(t, service, "sentinel")
		closeSocket(t, proxy)
		send("after the proxy", unix.EPERM)
	}, []string{"[2001:db8::6]:5353=six"})
}

// The kernel's table has the last host of a virtual address, and the last address of a host.
func TestVirtualHosts(t *testing.T) {
	containers(t, func(_ uint64, list []*contained) {
		c := list[0]
		private, at := uint16(20000), netip.MustParseAddrPort("[2001:db8::1]:53")
		if c.Publishes() || c.Publish(private, at) == nil {
			t.Error("a server is published where UDP is not translated")
		}
		d, err := c.TranslateDatagrams()
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if !c.Publishes() {
			t.Error("no server is published")
		}
		if err := errors.Join(c.Publish(private, at), c.Publish(private, at)); err != nil {
			t.Error(err)
		}
		v4, first, second := netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("2001:db8::6"), netip.MustParseAddr("2001:db8::7")
		for _, v6 := range []netip.Addr{first, first, second} {
			if err := d.Put(v4, VirtualHost{Addr: v6, Source: at.Addr()}); err != nil {
				t.Fatal(err)
			}
			if host, known := d.Host(v4); !known || host != v6 {
				t.Errorf("behind %s is %s, %v; want %s", v4, host, known, v6)
			}
			if virtual, known := d.Virtual(v6); !known || virtual != v4 {
				t.Errorf("%s is %s, %v; want %s", v6, virtual, known, v4)
			}
		}
		if virtual, known := d.Virtual(first); known {
			t.Errorf("%s is still %s", first, virtual)
		}
		if _, known := d.Host(v4.Next()); known {
			t.Error("a host is behind an address that nobody has")
		}
	}, nil)
}
