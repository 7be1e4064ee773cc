package enforcer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
)

// testPool is the pool of virtual addresses of these tests.
var testPool = netip.MustParsePrefix("198.18.0.0/15")

// translating has a container whose datagrams are translated, and that may ask one host and port.
func translating(t *testing.T, fn func(c *contained, d *Datagrams)) {
	t.Helper()
	containers(t, func(_ uint64, list []*contained) {
		c := list[0]
		if err := c.UseLoopback(7); err != nil {
			t.Fatal(err)
		}
		d, err := c.TranslateDatagrams(testPool)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		fn(c, d)
	}, []string{"[2001:db8::6]:5353=six"})
}

// attached checks an error of Attach. The test is skipped where the kernel cannot attach programs.
func attached(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, ErrNoDatagrams) {
		t.Skip("skip: needs Linux 6.6: BPF links at network devices (tcx)")
	}
	if err != nil {
		t.Fatal(err)
	}
}

// What is sent to a virtual address reaches no service of the host's, where the programs at the links
// do not translate it: it is refused unless the DNS proxy is there, which ends before they do. With
// the proxy and without them, the service would hear it.
func TestNobodyTranslates(t *testing.T) {
	translating(t, func(c *contained, d *Datagrams) {
		virtual := netip.MustParseAddrPort("198.18.0.1:5353")
		remote := VirtualHost{Addr: netip.MustParseAddr("2001:db8::6"), Source: netip.MustParseAddr("2001:db8::1"), Device: loopbackDevice}
		service, client := of(t, nil, unix.AF_INET, unix.SOCK_DGRAM), of(t, c, unix.AF_INET, unix.SOCK_DGRAM)
		err := errors.Join(d.Put(virtual.Addr(), remote), d.Begin(),
			unix.Bind(service, sockaddr.Of(netip.AddrPortFrom(netip.IPv4Unspecified(), virtual.Port()))))
		if err != nil {
			t.Fatal(err)
		}
		send := func(text string, want error) {
			t.Helper()
			if err := unix.Sendto(client, []byte(text), 0, sockaddr.Of(virtual)); !errors.Is(err, want) {
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
	})
}

// The kernel's table has the last host of a virtual address, and the last address of a host.
func TestVirtualHosts(t *testing.T) {
	containers(t, func(_ uint64, list []*contained) {
		c := list[0]
		private, at := uint16(20000), netip.MustParseAddrPort("[2001:db8::1]:53")
		if c.Publishes() || c.Publish(private, at) == nil {
			t.Error("a server is published where UDP is not translated")
		}
		d, err := c.TranslateDatagrams(testPool)
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

// The programs are attached once to each link, by files with larger numbers than the one that has to be
// closed before them.
func TestAttachTranslation(t *testing.T) {
	containers(t, func(_ uint64, list []*contained) {
		d, err := list[0].TranslateDatagrams(testPool)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		const before = 300
		attached(t, errors.Join(d.Attach(loopbackDevice, before), d.Attach(loopbackDevice, before), d.Detach(loopbackDevice), d.Detach(77)))
		if len(d.links) != 1 {
			t.Errorf("there are %d links", len(d.links))
		}
		for _, l := range d.links {
			if file := l.(interface{ FD() int }).FD(); file <= before {
				t.Errorf("a link has file %d, which is closed before %d", file, before)
			}
		}
		here, there := pair(t)
		if err := errors.Join(d.Attach(here.Index, before), d.Attach(there.Index, before), d.Keep([]int{here.Index})); err != nil {
			t.Fatal(err)
		}
		if d.links[here.Index] == nil || d.links[there.Index] != nil || len(d.links) != 2 {
			t.Errorf("kept are %v, want the loopback and %d", d.links, here.Index)
		}
		if err := d.Attach(77, before); !errors.Is(err, unix.ENODEV) {
			t.Errorf("attach to a link that is not there: %v", err)
		}
	}, nil)
}

// The actions of the programs at the links.
const (
	leftAlone  = 1<<32 - 1 // TCX_NEXT
	redirected = 7         // TCX_REDIRECT
)

// about is an ICMPv6 message about a datagram that has left from a port.
func about(typ, code byte, mtu uint32, next byte, from, to netip.AddrPort) []byte {
	frame := make([]byte, 14+40+8+40+8)
	header := func(at, length int, next byte, from, to netip.Addr) {
		frame[at], frame[at+6], frame[at+7] = 0x60, next, 64
		binary.BigEndian.PutUint16(frame[at+4:], uint16(length))
		copy(frame[at+8:], from.AsSlice())
		copy(frame[at+24:], to.AsSlice())
	}
	binary.BigEndian.PutUint16(frame[12:], unix.ETH_P_IPV6)
	header(14, 8+40+8, unix.IPPROTO_ICMPV6, netip.MustParseAddr("2001:db8::9"), from.Addr())
	frame[54], frame[55] = typ, code
	binary.BigEndian.PutUint32(frame[58:], mtu)
	header(62, 8+100, next, from.Addr(), to.Addr())
	binary.BigEndian.PutUint16(frame[102:], from.Port())
	binary.BigEndian.PutUint16(frame[104:], to.Port())
	binary.BigEndian.PutUint16(frame[106:], 108)
	return frame
}

// sum is the checksum of RFC 1071: 0 if the data has the right one.
func sum(data []byte) uint16 {
	var s uint32
	for i := 0; i < len(data); i += 2 {
		s += uint32(binary.BigEndian.Uint16(data[i:]))
	}
	for s > 0xffff {
		s = s&0xffff + s>>16
	}
	return ^uint16(s)
}

// ICMPv6 errors about a datagram of the container's become the ICMP errors of RFC 7915 section 5.2.
// Others are the host's.
func TestTranslatedErrors(t *testing.T) {
	translating(t, func(c *contained, d *Datagrams) {
		own, to := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddrPort("[2001:db8::6]:5353")
		client, virtual := of(t, c, unix.AF_INET, unix.SOCK_DGRAM), netip.MustParseAddrPort("198.18.0.1:5353")
		err := errors.Join(d.Put(virtual.Addr(), VirtualHost{Addr: to.Addr(), Source: own, Device: loopbackDevice}), d.Begin(),
			unix.Connect(client, sockaddr.Of(virtual)))
		if err != nil {
			t.Fatal(err)
		}
		local, _ := names2(t, client)
		from := netip.AddrPortFrom(own, netip.MustParseAddrPort(local).Port())
		other := netip.AddrPortFrom(own, from.Port()^1)
		const none = 255
		for name, tt := range map[string]struct {
			message []byte
			code    byte
			mtu     uint16
		}{
			"no route":      {about(1, 0, 0, unix.IPPROTO_UDP, from, to), 1, 0},
			"prohibited":    {about(1, 1, 0, unix.IPPROTO_UDP, from, to), 10, 0},
			"address":       {about(1, 3, 0, unix.IPPROTO_UDP, from, to), 1, 0},
			"port":          {about(1, 4, 0, unix.IPPROTO_UDP, from, to), 3, 0},
			"too big":       {about(2, 0, 1400, unix.IPPROTO_UDP, from, to), 4, 1380},
			"smallest":      {about(2, 0, 1280, unix.IPPROTO_UDP, from, to), 4, 1260},
			"too small":     {about(2, 0, 1279, unix.IPPROTO_UDP, from, to), none, 0},
			"no size":       {about(2, 0, 5, unix.IPPROTO_UDP, from, to), none, 0},
			"large":         {about(2, 0, 70000, unix.IPPROTO_UDP, from, to), 4, 65535},
			"hop limit":     {about(3, 0, 0, unix.IPPROTO_UDP, from, to), none, 0},
			"TCP":           {about(1, 4, 0, unix.IPPROTO_TCP, from, to), none, 0},
			"another port":  {about(1, 4, 0, unix.IPPROTO_UDP, other, to), none, 0},
			"another host":  {about(1, 4, 0, unix.IPPROTO_UDP, from, netip.AddrPortFrom(own.Next(), 5353)), none, 0},
			"another's own": {about(1, 4, 0, unix.IPPROTO_UDP, netip.AddrPortFrom(own.Next(), from.Port()), to), none, 0},
		} {
			action, out, err := d.objs.ToIpv4.Test(tt.message)
			if err != nil {
				t.Fatal(err)
			}
			if tt.code == none {
				if action != leftAlone || !bytes.Equal(out, tt.message) {
					t.Errorf("%s: %d, % x; want it left alone", name, action, out)
				}
				continue
			}
			if action != redirected || len(out) != 14+20+36 {
				t.Errorf("%s: %d, %d B, want %d", name, action, len(out), redirected)
				continue
			}
			ip, icmp := out[14:34], out[34:]
			inner := icmp[8:]
			if sum(ip) != 0 || sum(icmp) != 0 || sum(inner[:20]) != 0 {
				t.Errorf("%s: checksums are wrong: % x", name, out)
			}
			peer, here := []byte{127, 18, 0, 1}, []byte{127, 0, 0, 1}
			if ip[9] != unix.IPPROTO_ICMP || !bytes.Equal(ip[12:], slices.Concat(peer, here)) || icmp[0] != 3 || icmp[1] != tt.code ||
				binary.BigEndian.Uint16(icmp[6:]) != tt.mtu || !bytes.Equal(inner[12:20], slices.Concat(here, peer)) ||
				binary.BigEndian.Uint16(inner[2:]) != 128 || !bytes.Equal(inner[20:], tt.message[102:110]) {
				t.Errorf("%s: % x", name, out)
			}
		}
	})
}
