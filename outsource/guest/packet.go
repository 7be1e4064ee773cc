package guest

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/outsource/wire"
)

// # Packets of the guest's kernel
//
// A packet on the TUN device begins with a struct virtio_net_hdr (linux/virtio_net.h). By it, neither side
// computes checksums of UDP and ICMP: the kernel leaves them out, and takes ours for partial ones, which
// it does not check.

const (
	virtioSize = 10 // struct virtio_net_hdr
	head4      = 20 // of IPv4, without options
	head6      = 40 // of IPv6
	headUDP    = 8
	headICMP   = 8 // and of ICMPv6
	headMax    = virtioSize + head6 + headICMP + head6 + headUDP

	// deviceMTU is the largest that a device has. So no IPv4 datagram is in fragments.
	deviceMTU = 65535
)

var be = binary.BigEndian

// fragments puts an IPv6 datagram together that is longer than the device's MTU: its fragments come one
// after another.
type fragments struct {
	id       uint32
	from, to [16]byte
	b        []byte
}

// parse reads a packet. outgoing says that d is a UDP datagram, or the port's error in an ICMP message
// about one: d.Errno. Of other packets nothing is known.
func (f *fragments) parse(b []byte) (d wire.Datagram, outgoing bool) {
	if len(b) < virtioSize+head4 {
		return d, false
	}
	b = b[virtioSize:]
	switch b[0] >> 4 {
	case 4:
		size, total := int(b[0]&15)*4, int(be.Uint16(b[2:]))
		const fragment = 0x3fff // an offset, or MF
		if size < head4 || total < size || total > len(b) || be.Uint16(b[6:])&fragment != 0 {
			return d, false
		}
		to := netip.AddrFrom4([4]byte(b[16:20]))
		return parsePayload(b[9], to, b[size:total])
	case 6:
		if len(b) < head6 || head6+int(be.Uint16(b[4:])) > len(b) {
			return d, false
		}
		next, payload := b[6], b[head6:head6+int(be.Uint16(b[4:]))]
		if next == unix.IPPROTO_FRAGMENT {
			if next, payload = f.add(b, payload); payload == nil {
				return d, false
			}
		}
		return parsePayload(next, netip.AddrFrom16([16]byte(b[24:40])), payload)
	}
	return d, false
}

// add adds a fragment (RFC 8200 section 4.5). It returns the whole payload with the last one.
func (f *fragments) add(head, b []byte) (next uint8, payload []byte) {
	if len(b) < 8 {
		return 0, nil
	}
	at, more, id := int(be.Uint16(b[2:])&^7), b[3]&1 != 0, be.Uint32(b[4:])
	from, to := [16]byte(head[8:24]), [16]byte(head[24:40])
	if at == 0 {
		f.id, f.from, f.to, f.b = id, from, to, f.b[:0]
	}
	if id != f.id || from != f.from || to != f.to || at != len(f.b) || len(f.b)+len(b)-8 > wire.DatagramMax+headUDP {
		f.b = f.b[:0]
		return 0, nil
	}
	f.b = append(f.b, b[8:]...)
	if more {
		return 0, nil
	}
	return b[0], f.b
}

// parsePayload reads UDP, or an ICMP message about a port.
func parsePayload(protocol uint8, to netip.Addr, b []byte) (d wire.Datagram, outgoing bool) {
	switch {
	case protocol == unix.IPPROTO_UDP && len(b) >= headUDP:
		size := int(be.Uint16(b[4:]))
		if size < headUDP || size > len(b) {
			return d, false
		}
		return wire.Datagram{Port: be.Uint16(b), Peer: netip.AddrPortFrom(to, be.Uint16(b[2:])), Bytes: b[headUDP:size]}, true
	case protocol == unix.IPPROTO_ICMP && len(b) >= headICMP+head4+headUDP && b[0] == 3 && b[1] == 3:
		b = b[headICMP:]
		size := int(b[0]&15) * 4
		if b[0]>>4 != 4 || size < head4 || len(b) < size+headUDP || b[9] != unix.IPPROTO_UDP {
			return d, false
		}
		from := netip.AddrFrom4([4]byte(b[12:16]))
		return refusal(from, b[size:]), true
	case protocol == unix.IPPROTO_ICMPV6 && len(b) >= headICMP+head6+headUDP && b[0] == 1 && b[1] == 4:
		b = b[headICMP:]
		if b[0]>>4 != 6 || b[6] != unix.IPPROTO_UDP {
			return d, false
		}
		return refusal(netip.AddrFrom16([16]byte(b[8:24])), b[head6:]), true
	}
	return d, false
}

// refusal is the error of a datagram that came from a peer: nobody in the guest has the port.
func refusal(from netip.Addr, udp []byte) wire.Datagram {
	return wire.Datagram{Errno: uint16(unix.ECONNREFUSED), Port: be.Uint16(udp[2:]), Peer: netip.AddrPortFrom(from, be.Uint16(udp))}
}

// build appends what precedes the bytes of a datagram for the guest's kernel, from its peer to the address
// of that family. For an errno, that is all: an ICMP message about a datagram to the peer. Nothing is appended
// if there is no such address, if the datagram is too long for IPv4, or for EMSGSIZE: its ICMP message would
// have the kernel cut later datagrams.
func build(b []byte, addrs []netip.Addr, d wire.Datagram) []byte {
	peer := d.Peer.Addr()
	i := slices.IndexFunc(addrs, func(a netip.Addr) bool { return a.Is4() == peer.Is4() })
	tooLong := peer.Is4() && head4+headUDP+len(d.Bytes) > deviceMTU
	if i < 0 || tooLong || unix.Errno(d.Errno) == unix.EMSGSIZE {
		return b
	}
	own := addrs[i]
	if d.Errno == 0 {
		b = virtio(b, own, 6)
		b = ipHead(b, unix.IPPROTO_UDP, peer, own, headUDP+len(d.Bytes))
		return udpHead(b, d.Peer.Port(), d.Port, len(d.Bytes))
	}
	b = virtio(b, own, 2)
	size := headICMP + head4 + headUDP
	if own.Is6() {
		size = headICMP + head6 + headUDP
		b = ipHead(b, unix.IPPROTO_ICMPV6, peer, own, size)
		b = append(b, 1, icmp6Code(unix.Errno(d.Errno)), 0, 0, 0, 0, 0, 0)
	} else {
		b = ipHead(b, unix.IPPROTO_ICMP, peer, own, size)
		b = append(b, 3, icmp4Code(unix.Errno(d.Errno)), 0, 0, 0, 0, 0, 0)
	}
	b = ipHead(b, unix.IPPROTO_UDP, own, peer, headUDP)
	return udpHead(b, d.Port, d.Peer.Port(), 0)
}

// virtio appends a header that says where the checksum is, which is partial.
func virtio(b []byte, own netip.Addr, checksum uint16) []byte {
	const needsChecksum = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM
	start := uint16(head4)
	if own.Is6() {
		start = head6
	}
	b = append(b, needsChecksum, 0, 0, 0, 0, 0)
	b = binary.NativeEndian.AppendUint16(b, start)
	return binary.NativeEndian.AppendUint16(b, checksum)
}

func ipHead(b []byte, protocol uint8, from, to netip.Addr, size int) []byte {
	const hops = 64
	if to.Is6() {
		b = append(b, 0x60, 0, 0, 0)
		b = be.AppendUint16(b, uint16(size))
		b = append(b, protocol, hops)
		return append(append(b, from.AsSlice()...), to.AsSlice()...)
	}
	start, tos := len(b), uint8(0)
	if protocol == unix.IPPROTO_ICMP {
		tos = netns.ErrorTOS
	}
	b = append(b, 0x45, tos)
	b = be.AppendUint16(b, uint16(head4+size))
	b = append(b, 0, 0, 0x40, 0, hops, protocol, 0, 0) // DF
	b = append(append(b, from.AsSlice()...), to.AsSlice()...)
	sum := uint32(0)
	for i := start; i < len(b); i += 2 {
		sum += uint32(be.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	be.PutUint16(b[start+10:], ^uint16(sum))
	return b
}

func udpHead(b []byte, from, to uint16, size int) []byte {
	b = be.AppendUint16(be.AppendUint16(b, from), to)
	b = be.AppendUint16(b, uint16(headUDP+size))
	return append(b, 0xff, 0xff) // IPv6 refuses 0
}

// icmp4Code is the code of "destination unreachable" that gives a program an errno (icmp_err_convert of
// net/ipv4/icmp.c).
func icmp4Code(errno unix.Errno) uint8 {
	switch errno {
	case unix.ECONNREFUSED:
		return 3
	case unix.ENETUNREACH:
		return 0
	case unix.ENOPROTOOPT:
		return 2
	case unix.EACCES, unix.EPERM:
		return 13 // administratively prohibited: EHOSTUNREACH
	}
	return 1 // EHOSTUNREACH
}

// icmp6Code is likewise (icmpv6_err_convert).
func icmp6Code(errno unix.Errno) uint8 {
	switch errno {
	case unix.ECONNREFUSED:
		return 4
	case unix.ENETUNREACH:
		return 0
	case unix.EACCES, unix.EPERM:
		return 1
	}
	return 3 // EHOSTUNREACH
}
