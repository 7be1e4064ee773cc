package container

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
)

// rawSockets sends datagrams in the place of a program and of its peers. They are in the host's
// namespace, and receive nothing. They need CAP_NET_RAW and CAP_NET_ADMIN.
type rawSockets struct {
	out, in int // of IPv6, to peers; of IPv4, to the program
}

// rawWay is where a datagram comes from, and where it goes to.
type rawWay struct {
	from, to netip.AddrPort
	tos, ttl uint8
}

// udpHeader is the length of UDP's header in bytes. Its last two bytes are the checksum.
const udpHeader = 8

// openRaw opens the sockets. loopback is the priority by which the container's sockets know packets of
// their loopback (bpf/loopback.h).
func openRaw(ns *netns.NS, loopback uint32) (r *rawSockets, err error) {
	r = &rawSockets{-1, -1}
	err = ns.Do(func() (err error) {
		r.out, err = unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_RAW)
		if err == nil {
			r.in, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_RAW)
		}
		return err
	})
	for _, o := range []struct{ file, level, name, value int }{
		{r.out, unix.IPPROTO_IPV6, unix.IPV6_HDRINCL, 0}, // the kernel makes the header, and fragments
		{r.out, unix.IPPROTO_IPV6, unix.IPV6_CHECKSUM, udpHeader - 2},
		{r.out, unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1},
		{r.in, unix.SOL_SOCKET, unix.SO_PRIORITY, int(loopback)},
	} {
		if err == nil {
			err = unix.SetsockoptInt(o.file, o.level, o.name, o.value)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open raw sockets: %w", err), r.close())
	}
	return r, nil
}

func (r *rawSockets) close() error {
	var errs []error
	for _, file := range []int{r.out, r.in} {
		if file >= 0 {
			errs = append(errs, unix.Close(file))
		}
	}
	return errors.Join(errs...)
}

// send sends a datagram. One of IPv6 is cut into fragments where it is too large for the link.
func (r *rawSockets) send(way rawWay, payload []byte) error {
	udp := make([]byte, 0, udpHeader+len(payload))
	udp = binary.BigEndian.AppendUint16(udp, way.from.Port())
	udp = binary.BigEndian.AppendUint16(udp, way.to.Port())
	udp = binary.BigEndian.AppendUint16(udp, uint16(udpHeader+len(payload)))
	udp = append(binary.BigEndian.AppendUint16(udp, 0), payload...)
	if way.to.Addr().Is4() {
		to := &unix.SockaddrInet4{Addr: way.to.Addr().As4()}
		return sendError(way, unix.Sendto(r.in, append(header4(way, len(udp)), udp...), unix.MSG_DONTWAIT, to))
	}
	to := &unix.SockaddrInet6{Addr: way.to.Addr().As16(), Port: unix.IPPROTO_UDP} // of this socket, the protocol
	control := append(unix.PktInfo6(&unix.Inet6Pktinfo{Addr: way.from.Addr().As16()}),
		controlInt(unix.IPPROTO_IPV6, unix.IPV6_TCLASS, int32(way.tos))...)
	control = append(control, controlInt(unix.IPPROTO_IPV6, unix.IPV6_HOPLIMIT, int32(max(1, way.ttl)))...)
	return sendError(way, unix.Sendmsg(r.out, udp, control, to, unix.MSG_DONTWAIT))
}

func sendError(way rawWay, err error) error {
	if err != nil {
		return fmt.Errorf("send datagram from %s to %s: %w", way.from, way.to, err)
	}
	return nil
}

// header4 returns a header of IPv4. The kernel fills in what is 0: the length, the id, and the checksum.
func header4(way rawWay, length int) []byte {
	h := make([]byte, 20, 20+length)
	h[0], h[1], h[6], h[8], h[9] = 4<<4|5, way.tos, 0x40, max(1, way.ttl), unix.IPPROTO_UDP
	from, to := way.from.Addr().As4(), way.to.Addr().As4()
	copy(h[12:], from[:])
	copy(h[16:], to[:])
	return h
}

// controlInt returns a control message with an int.
func controlInt(level, kind, value int32) []byte {
	b := make([]byte, unix.CmsgSpace(4))
	binary.NativeEndian.PutUint64(b, uint64(unix.CmsgLen(4)))
	binary.NativeEndian.PutUint32(b[8:], uint32(level))
	binary.NativeEndian.PutUint32(b[12:], uint32(kind))
	binary.NativeEndian.PutUint32(b[unix.CmsgLen(0):], uint32(value))
	return b
}
