package kernel

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// wire is an interface of the test's namespace, and what leaves by it.
type wire struct {
	ifindex int
	tap     int    // a packet socket at the other end
	remote  string // a neighbour, which gets the sentinels
}

// newWire makes a veth pair, gives one end an address of each family, and listens
// at the other. Every address of the prefixes 4 and 6 has a neighbour entry when
// neighbour has been called for it.
func newWire(t *testing.T, name, prefix4, prefix6, remote string) *wire {
	t.Helper()
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "tap"}
	try(t, "make veth", netlink.LinkAdd(veth))
	near, err := netlink.LinkByName(name)
	try(t, "find veth", err)
	far, err := netlink.LinkByName(name + "tap")
	try(t, "find veth's peer", err)
	for _, l := range []netlink.Link{near, far} {
		try(t, "set veth up", netlink.LinkSetUp(l))
	}
	testkit.Eventually(t, holds("veth is up", func() bool { // until then it drops what is sent
		l, err := netlink.LinkByName(name)
		return err == nil && l.Attrs().OperState == netlink.OperUp
	}))
	for _, prefix := range []string{prefix4, prefix6} {
		address, err := netlink.ParseAddr(prefix)
		try(t, "parse address", err)
		if strings.Contains(prefix, ":") {
			address.Flags = unix.IFA_F_NODAD
		}
		try(t, "add address", netlink.AddrAdd(near, address))
	}
	w := &wire{ifindex: near.Attrs().Index, remote: remote + ":9"}
	w.neighbour(t, remote)
	w.tap = socket(t, unix.AF_PACKET, unix.SOCK_DGRAM, 0)
	all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
	try(t, "bind packet socket", unix.Bind(w.tap, &unix.SockaddrLinklayer{Protocol: all, Ifindex: far.Attrs().Index}))
	timeout := unix.NsecToTimeval(testkit.Patience.Nanoseconds())
	try(t, "set timeout", unix.SetsockoptTimeval(w.tap, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout))
	return w
}

// neighbour says where an address is, as no one answers there.
func (w *wire) neighbour(t *testing.T, addresses ...string) {
	t.Helper()
	for _, address := range addresses {
		try(t, "add neighbour", netlink.NeighSet(&netlink.Neigh{
			LinkIndex: w.ifindex, State: netlink.NUD_PERMANENT,
			IP: net.ParseIP(address), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1},
		}))
	}
}

// packet is a UDP datagram in an IP packet.
type packet []byte

// headers is the length of the IP headers, or 0 if it is no UDP datagram.
func (p packet) headers() int {
	switch {
	case len(p) >= 28 && p[0]>>4 == 4 && p[9] == unix.IPPROTO_UDP:
		return int(p[0]&15) * 4
	case len(p) >= 48 && p[0]>>4 == 6:
		next, length := p[6], 40
		for next == unix.IPPROTO_HOPOPTS || next == unix.IPPROTO_ROUTING || next == unix.IPPROTO_DSTOPTS {
			next, length = p[length], length+8+8*int(p[length+1])
		}
		if next == unix.IPPROTO_UDP {
			return length
		}
	}
	return 0
}

func (p packet) payload() string { return string(p[p.headers()+8:]) }

func (p packet) source() string {
	if p[0]>>4 == 4 {
		return netip.AddrFrom4([4]byte(p[12:16])).String()
	}
	return netip.AddrFrom16([16]byte(p[8:24])).String()
}

func (p packet) destination() string {
	if p[0]>>4 == 4 {
		return netip.AddrFrom4([4]byte(p[16:20])).String()
	}
	return netip.AddrFrom16([16]byte(p[24:40])).String()
}

// sentinel is the payload of the datagram that follows what is looked for.
const sentinel = "sentinel"

// until is the next datagram that left by this wire before a sentinel, or nil. It
// sends the sentinel if it is given a socket.
func (w *wire) until(t *testing.T, fd int) packet {
	t.Helper()
	if fd >= 0 {
		try(t, "send sentinel", unix.Sendto(fd, []byte(sentinel), 0, sockaddr(w.remote)))
	}
	for {
		buffer := make([]byte, 2048)
		n, _, err := unix.Recvfrom(w.tap, buffer, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		try(t, "receive from packet socket", err)
		switch p := packet(buffer[:n]); {
		case p.headers() == 0:
		case p.payload() == sentinel:
			return nil
		default:
			return p
		}
	}
}
