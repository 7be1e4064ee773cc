package testkit

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
)

// Packets is a kind of packets that should not be in a namespace.
type Packets struct {
	what     string
	filter   []bpf.Instruction
	loopback bool   // the sentinel is a packet on the loopback
	protocol uint16 // of the sentinel: an Ethernet type
	sentinel []byte
}

const take = 1 << 16 // how many octets of a packet a filter takes

// sentinel4 is the header of an IPv4 packet from and to an address that is no loopback's.
var sentinel4 = []byte{0x45, 0, 0, 20, 0, 0, 0, 0, 1, 253, 0, 0, 198, 18, 255, 254, 198, 18, 255, 254}

var (
	// IPv4OnLinks are the packets of IPv4 and ARP on all links but the loopback.
	IPv4OnLinks = Packets{"IPv4 on links", []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtLinkLayerType},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ARPHRD_LOOPBACK, SkipTrue: 3},
		bpf.LoadExtension{Num: bpf.ExtProto},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_IP, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_ARP, SkipTrue: 1},
		bpf.RetConstant{},
		bpf.RetConstant{Val: take},
	}, false, unix.ETH_P_IP, sentinel4}
	// StrayIPv4 are the packets of IPv4, on all links, that name an address outside of 127.0.0.0/8.
	StrayIPv4 = Packets{"IPv4 outside of 127.0.0.0/8", []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtProto},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.ETH_P_IP, SkipTrue: 4},
		bpf.LoadAbsolute{Off: 12, Size: 1}, // the source (RFC 791 section 3.1)
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 127, SkipTrue: 3},
		bpf.LoadAbsolute{Off: 16, Size: 1}, // the destination
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 127, SkipTrue: 1},
		bpf.RetConstant{},
		bpf.RetConstant{Val: take},
	}, true, unix.ETH_P_IP, sentinel4}
	// IPv6 are the packets of IPv6 on all links.
	IPv6 = Packets{"IPv6", []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtProto},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_IPV6, SkipTrue: 1},
		bpf.RetConstant{},
		bpf.RetConstant{Val: take},
	}, true, unix.ETH_P_IPV6, []byte("the last packet of IPv6")}
)

// Capture looks for packets that should not be in a namespace. Its filter takes no others, so it
// has room for them whatever else there is. It needs CAP_NET_RAW.
type Capture struct {
	packets Packets
	ns      *netns.NS
	sock    int
}

// StartCapture begins to look for packets in the namespace of a file, such as Namespace.Path or
// /proc/PID/ns/net. The capture is closed with the test.
func StartCapture(t TB, path string, packets Packets) *Capture {
	t.Helper()
	c := &Capture{packets: packets, sock: -1}
	t.Cleanup(func() {
		if c.ns != nil {
			c.ns.Close()
		}
		if c.sock >= 0 {
			unix.Close(c.sock)
		}
	})
	var err error
	if c.ns, err = netns.Open(path); err == nil {
		err = c.ns.Do(c.open)
	}
	if err != nil {
		t.Fatalf("capture %s: %v", packets.what, err)
	}
	return c
}

// open opens the socket in the calling thread's namespace. It takes packets only once its filter is
// there.
func (c *Capture) open() error {
	filter, err := bpf.Assemble(c.packets.filter)
	if err != nil {
		return err
	}
	if c.sock, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return err
	}
	raw := make([]unix.SockFilter, len(filter))
	for i, f := range filter {
		raw[i] = unix.SockFilter{Code: f.Op, Jt: f.Jt, Jf: f.Jf, K: f.K}
	}
	prog := &unix.SockFprog{Len: uint16(len(raw)), Filter: &raw[0]}
	if err := unix.SetsockoptSockFprog(c.sock, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, prog); err != nil {
		return fmt.Errorf("set filter: %w", err)
	}
	limit := unix.NsecToTimeval(Patience.Nanoseconds())
	if err := unix.SetsockoptTimeval(c.sock, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		return fmt.Errorf("set time limit: %w", err)
	}
	return unix.Bind(c.sock, &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ALL)})
}

// Nothing fails the test if there were such packets. It sends one last, which shows that the capture
// takes them.
func (c *Capture) Nothing(t TB) {
	t.Helper()
	if err := c.ns.Do(c.sendSentinel); err != nil {
		t.Fatalf("capture %s: send the last packet: %v", c.packets.what, err)
	}
	const most = 5 // of the packets that are shown
	packet := make([]byte, take)
	for found := 0; ; found++ {
		n, from, err := unix.Recvfrom(c.sock, packet, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			t.Fatalf("capture %s: wait for the last packet: %v", c.packets.what, err)
		}
		if bytes.HasPrefix(packet[:n], c.packets.sentinel) { // Ethernet may fill it up
			return
		}
		if at, is := from.(*unix.SockaddrLinklayer); is && found < most {
			t.Errorf("%s, on link %d of type %d: % x", c.packets.what, at.Ifindex, at.Hatype, packet[:min(n, 64)])
		}
	}
}

// sendSentinel sends a packet of the kind by a link of the calling thread's namespace.
func (c *Capture) sendSentinel() error {
	links, err := net.Interfaces()
	if err != nil {
		return err
	}
	sender, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(sender)
	for _, link := range links {
		if link.Flags&net.FlagUp == 0 || (link.Flags&net.FlagLoopback != 0) != c.packets.loopback {
			continue
		}
		return unix.Sendto(sender, c.packets.sentinel, 0, &unix.SockaddrLinklayer{
			Protocol: networkOrder(c.packets.protocol), Ifindex: link.Index, Halen: 6, Addr: [8]byte{2, 0, 0, 0, 0, 1},
		})
	}
	return unix.ENODEV
}

// networkOrder is an Ethernet type as the kernel wants it.
func networkOrder(protocol uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], protocol)
	return binary.NativeEndian.Uint16(b[:])
}
