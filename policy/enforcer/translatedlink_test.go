package enforcer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// pair makes two links in the calling thread's namespace, and returns that at which packets arrive.
func pair(t *testing.T) (here, there *net.Interface) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "here"
	err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "there"})
	for _, name := range []string{"here", "there"} {
		link, lerr := netlink.LinkByName(name)
		if err = errors.Join(err, lerr); err == nil {
			err = netlink.LinkSetUp(link)
		}
	}
	if err == nil {
		here, err = net.InterfaceByName("here")
	}
	if err == nil {
		there, err = net.InterfaceByName("there")
	}
	if err != nil {
		t.Fatal(err)
	}
	return here, there
}

// datagramFrame is a frame with a UDP datagram.
func datagramFrame(mac net.HardwareAddr, from, to netip.AddrPort, text string) []byte {
	length := uint16(8 + len(text))
	udp := binary.BigEndian.AppendUint16(nil, from.Port())
	udp = binary.BigEndian.AppendUint16(udp, to.Port())
	udp = binary.BigEndian.AppendUint16(udp, length)
	udp = append(udp, 0, 0)
	udp = append(udp, text...)
	addrs := slices.Concat(from.Addr().AsSlice(), to.Addr().AsSlice())
	summed := slices.Concat(addrs, udp, []byte{0, unix.IPPROTO_UDP}, binary.BigEndian.AppendUint16(nil, length))
	if len(text)%2 != 0 {
		panic("the checksum is of even lengths")
	}
	binary.BigEndian.PutUint16(udp[6:], sum(summed))
	frame := binary.BigEndian.AppendUint16(append(slices.Clone(mac), make([]byte, 6)...), unix.ETH_P_IPV6)
	frame = append(frame, 0x60, 0, 0, 0)
	frame = append(binary.BigEndian.AppendUint16(frame, length), unix.IPPROTO_UDP, 64)
	return slices.Concat(frame, addrs, udp)
}

// tagged is a frame with the tag of a VLAN (IEEE 802.1Q).
func tagged(frame []byte, vlan uint16) []byte {
	tag := binary.BigEndian.AppendUint16([]byte{0x81, 0}, vlan)
	return slices.Concat(frame[:12], tag, frame[12:])
}

// sniffer opens a socket for the frames of a link.
func sniffer(t *testing.T, link int) int {
	t.Helper()
	s := of(t, nil, unix.AF_PACKET, unix.SOCK_RAW)
	if err := unix.Bind(s, &unix.SockaddrLinklayer{Protocol: 0x0300 /* ETH_P_ALL */, Ifindex: link}); err != nil {
		t.Fatal(err)
	}
	return s
}

// hearing has the datagrams of one host translated, and returns the address of it and of the socket
// that hears it.
func hearing(t *testing.T, c *contained, d *Datagrams) (client int, from, to netip.AddrPort) {
	t.Helper()
	from, virtual := netip.MustParseAddrPort("[2001:db8::6]:5353"), netip.MustParseAddrPort("198.18.0.1:5353")
	own := netip.MustParseAddr("2001:db8::1")
	client = of(t, c, unix.AF_INET, unix.SOCK_DGRAM)
	err := errors.Join(d.Put(virtual.Addr(), VirtualHost{Addr: from.Addr(), Source: own, Device: loopbackDevice}), d.Begin(),
		unix.Connect(client, sockaddr.Of(virtual)))
	if err != nil {
		t.Fatal(err)
	}
	local, _ := names2(t, client)
	return client, from, netip.AddrPortFrom(own, netip.MustParseAddrPort(local).Port())
}

// What is for a link above another, a VLAN or one with another MAC address, is not translated below
// it. The tag of VLAN 0 has a priority only.
func TestTranslatedByTheUpperLink(t *testing.T) {
	translating(t, func(c *contained, d *Datagrams) {
		client, from, to := hearing(t, c, d)
		here, there := pair(t)
		attached(t, d.Attach(here.Index, -1))
		loopback, sender := sniffer(t, loopbackDevice), sniffer(t, there.Index)
		other := net.HardwareAddr{2, 0, 0, 0, 0, 7}
		for _, frame := range [][]byte{
			tagged(datagramFrame(here.HardwareAddr, from, to, "of a VLAN!"), 5),
			datagramFrame(other, from, to, "for a port"),
			tagged(datagramFrame(here.HardwareAddr, from, to, "priority"), 7<<13),
			datagramFrame(here.HardwareAddr, from, to, "sentinel"),
		} {
			if _, err := unix.Write(sender, frame); err != nil {
				t.Fatal(err)
			}
		}
		reads(t, client, "priority")
		reads(t, client, "sentinel")
		buf := make([]byte, 2048)
		for n := 0; !bytes.HasSuffix(buf[:n], []byte("sentinel")); {
			var err error
			if n, _, err = unix.Recvfrom(loopback, buf, 0); err != nil {
				t.Fatal(err)
			}
			if !bytes.HasSuffix(buf[:n], []byte("sentinel")) && !bytes.HasSuffix(buf[:n], []byte("priority")) {
				t.Errorf("on the loopback: % x", buf[:n])
			}
		}
	})
}

// Only a datagram that a socket hears says by which link its host is reached.
func TestTranslatedAnswersByTheLinkThatIsHeard(t *testing.T) {
	translating(t, func(c *contained, d *Datagrams) {
		_, from, to := hearing(t, c, d)
		here, _ := pair(t)
		peer := netip.MustParseAddr("198.19.0.1")
		known := bpf.PolicyVirtualHost{Addr: wordsOf(from.Addr()), Source: wordsOf(to.Addr()), Device: 77, Heard: 1}
		send := func(from, to netip.AddrPort) (action uint32, row bpf.PolicyVirtualHost) {
			t.Helper()
			key := virtualKey(peer)
			err := errors.Join(d.e.tables.hosts.Put(key, known), d.objs.VirtualByHost.Put(known.Addr, key.Addr))
			if err == nil {
				action, err = d.objs.ToIpv4.Run(&ebpf.RunOptions{
					Data: datagramFrame(here.HardwareAddr, from, to, "text"), DataOut: make([]byte, 256), Context: skb{Ifindex: uint32(here.Index)},
				})
			}
			if err = errors.Join(err, d.e.tables.hosts.Lookup(key, &row)); err != nil {
				t.Fatal(err)
			}
			return action, row
		}
		nobody := netip.AddrPortFrom(to.Addr(), to.Port()^1)
		if action, row := send(from, nobody); action != leftAlone || row != known {
			t.Errorf("a datagram that nobody hears: %d, %+v; want %d, %+v", action, row, uint32(leftAlone), known)
		}
		// The socket is connected to another virtual address of the host.
		client := of(t, c, unix.AF_INET, unix.SOCK_DGRAM)
		if err := unix.Bind(client, sockaddr.Of(netip.MustParseAddrPort("0.0.0.0:0"))); err != nil {
			t.Fatal(err)
		}
		local, err := unix.Getsockname(client)
		if err != nil {
			t.Fatal(err)
		}
		to = netip.AddrPortFrom(to.Addr(), netip.MustParseAddrPort(nameOf(local)).Port())
		if action, row := send(from, to); action != redirected || row.Device != uint32(here.Index) || row.Heard == known.Heard {
			t.Errorf("a datagram that a socket hears: %d, %+v", action, row)
		}
	})
}

// skb is struct __sk_buff of linux/bpf.h.
type skb struct {
	_       [10]uint32
	Ifindex uint32
	_       [37]uint32
}

// A datagram goes to the next hop that the table names, else to the one that the routes name.
func TestTranslatedByTheNextHop(t *testing.T) {
	translating(t, func(c *contained, d *Datagrams) {
		here, there := pair(t)
		testkit.AddToLoopback(t, "2001:db8::1/128")
		own, to := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::6")
		virtual := netip.MustParseAddrPort("198.18.0.1:5353")
		routers := map[netip.Addr]net.HardwareAddr{
			netip.MustParseAddr("2001:db8:7::1"): {2, 0, 0, 0, 0, 1}, netip.MustParseAddr("2001:db8:7::2"): {2, 0, 0, 0, 0, 2},
		}
		for router, mac := range routers {
			neighbour := &netlink.Neigh{LinkIndex: here.Index, State: netlink.NUD_PERMANENT, IP: router.AsSlice(), HardwareAddr: mac}
			if err := netlink.NeighSet(neighbour); err != nil {
				t.Fatal(err)
			}
		}
		byRoutes, byTable := netip.MustParseAddr("2001:db8:7::1"), netip.MustParseAddr("2001:db8:7::2")
		link := func(dst string, via net.IP) {
			t.Helper()
			prefix := netip.MustParsePrefix(dst)
			route := &netlink.Route{LinkIndex: here.Index, Gw: via, Dst: &net.IPNet{
				IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), 128),
			}}
			if err := netlink.RouteAdd(route); err != nil {
				t.Fatal(err)
			}
		}
		link("2001:db8:7::/64", nil)
		link("2001:db8::6/128", byRoutes.AsSlice())
		proxy, client := of(t, c, unix.AF_INET, unix.SOCK_DGRAM), of(t, c, unix.AF_INET, unix.SOCK_DGRAM)
		c.private(t, proxy, unix.IPPROTO_UDP, netip.MustParseAddrPort("0.0.0.0:53"), 20000)
		attached(t, errors.Join(d.Begin(), d.Attach(loopbackDevice, -1)))
		sees := sniffer(t, there.Index)
		for _, tt := range []struct {
			next netip.Addr
			want netip.Addr
		}{{netip.Addr{}, byRoutes}, {byTable, byTable}} {
			host := VirtualHost{Addr: to, Source: own, Next: tt.next, Device: here.Index}
			err := errors.Join(d.Put(virtual.Addr(), host), unix.Sendto(client, []byte("text"), 0, sockaddr.Of(virtual)))
			if err != nil {
				t.Fatal(err)
			}
			frame := make([]byte, 2048)
			for n := 0; !bytes.HasSuffix(frame[:n], []byte("text")); {
				if n, _, err = unix.Recvfrom(sees, frame, 0); err != nil {
					t.Fatal(err)
				}
			}
			if got := net.HardwareAddr(frame[:6]); got.String() != routers[tt.want].String() {
				t.Errorf("next hop %s: the frame is for %s, want %s", tt.next, got, routers[tt.want])
			}
		}
	})
}
