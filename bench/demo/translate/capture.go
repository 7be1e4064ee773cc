package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// EtherTypes in network byte order, as packet(7) has them.
const (
	etherAll  = 0x0300
	etherIPv4 = 0x0008
	etherIPv6 = 0xdd86
)

// hostLink is the host's link to the remote.
const hostLink = "srv"

// sentinel is the IPv4 packet that the demo sends itself, last: the capture has to see it.
const sentinel = "the demo's own IPv4 packet"

// capture hears the packets on the links of the host, in both directions, but not those of its loopback.
type capture struct {
	ns   *testkit.Namespace
	sock int
}

// count is what a capture has heard.
type count struct {
	ipv4, ipv6, other int
	flows             map[string]int // packets of IPv6, by what they are
}

func newCapture(ns *testkit.Namespace) (*capture, error) {
	c := &capture{ns: ns, sock: -1}
	err := ns.Do(func() (err error) {
		c.sock, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, etherAll)
		if err == nil {
			patience := unix.NsecToTimeval(testkit.Patience.Nanoseconds())
			err = unix.SetsockoptTimeval(c.sock, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience)
		}
		return err
	})
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("capture packets of the host: %w", err)
	}
	return c, nil
}

// Close closes the capture.
func (c *capture) Close() {
	if c.sock >= 0 {
		unix.Close(c.sock)
	}
}

// end sends the sentinel, and counts what was heard until it came. It fails if a packet was missed.
func (c *capture) end() (*count, error) {
	if err := c.ns.Do(sendSentinel); err != nil {
		return nil, fmt.Errorf("send an IPv4 packet: %w", err)
	}
	n := &count{flows: make(map[string]int)}
	packet := make([]byte, 1<<16)
	for {
		size, from, err := unix.Recvfrom(c.sock, packet, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read captured packets: %w", err)
		}
		link, ok := from.(*unix.SockaddrLinklayer)
		switch {
		case !ok || link.Hatype == unix.ARPHRD_LOOPBACK:
		case link.Protocol == etherIPv4 && string(packet[:size]) == sentinel:
			stats, err := unix.GetsockoptTpacketStats(c.sock, unix.SOL_PACKET, unix.PACKET_STATISTICS)
			if err == nil && stats.Drops > 0 {
				err = fmt.Errorf("%d captured packets were lost", stats.Drops)
			}
			return n, err
		case link.Protocol == etherIPv4:
			n.ipv4++
		case link.Protocol == etherIPv6:
			n.ipv6++
			n.flows[describe(packet[:size])]++
		default:
			n.other++
		}
	}
}

func sendSentinel() error {
	link, err := net.InterfaceByName(hostLink)
	if err != nil {
		return err
	}
	sock, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(sock)
	to := &unix.SockaddrLinklayer{Protocol: etherIPv4, Ifindex: link.Index, Halen: 6, Addr: [8]byte{2, 0, 0, 0, 0, 1}}
	return unix.Sendto(sock, []byte(sentinel), 0, to)
}

// describe says what an IPv6 packet is (RFC 8200), the same for both directions: the server's port is one
// of the remote's.
func describe(packet []byte) string {
	const header = 40
	if len(packet) < header+4 {
		return "IPv6"
	}
	src, _ := netip.AddrFromSlice(packet[8:24])
	dst, _ := netip.AddrFromSlice(packet[24:header])
	name := map[byte]string{unix.IPPROTO_TCP: "TCP", unix.IPPROTO_UDP: "UDP"}[packet[6]]
	switch {
	case packet[6] == unix.IPPROTO_ICMPV6 || packet[6] == unix.IPPROTO_HOPOPTS:
		return "IPv6 ICMP"
	case name == "":
		return "IPv6"
	}
	port := binary.BigEndian.Uint16(packet[header+2:])
	if src == testkit.RemoteAddr6 {
		port = binary.BigEndian.Uint16(packet[header:])
		src, dst = dst, src
	}
	return fmt.Sprintf("IPv6 %s %s, %s", name, src, netip.AddrPortFrom(dst, port))
}

// lines are for the reader.
func (n *count) lines() []string {
	var lines []string
	for _, what := range slices.Sorted(maps.Keys(n.flows)) {
		lines = append(lines, fmt.Sprintf("%s: %d", what, n.flows[what]))
	}
	return append(lines,
		"",
		fmt.Sprintf("IPv6 packets: %d", n.ipv6),
		fmt.Sprintf("IPv4 packets: %d", n.ipv4),
		fmt.Sprintf("other packets: %d", n.other),
		"(and one of IPv4 that the demo sent itself",
		"in the end: the capture has seen it)",
	)
}
