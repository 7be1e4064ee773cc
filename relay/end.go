package relay

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/watch"
	"github.com/tsugiki/tsugiki/keeper"
)

// socket is a UDP socket.
type socket struct {
	file *os.File
	raw  syscall.RawConn
}

// newSocket makes a UDP socket in a namespace and calls use with its descriptor. If use fails,
// newSocket closes the socket. Go's poller waits only for sockets whose flags have SOCK_NONBLOCK.
func newSocket(at Namespace, ip6 bool, flags int, use func(fd int) error) (socket, error) {
	k, err := at.Keeper()
	if err != nil {
		return socket{}, err
	}
	kind := keeper.Kind{Family: unix.AF_INET, Type: unix.SOCK_DGRAM | flags, Protocol: unix.IPPROTO_UDP}
	if ip6 {
		kind.Family = unix.AF_INET6
	}
	fd, err := k.Socket(kind)
	if err != nil {
		return socket{}, err
	}
	s := socket{file: os.NewFile(uintptr(fd), "relay")}
	if err = use(fd); err == nil {
		s.raw, err = s.file.SyscallConn()
	}
	if err != nil {
		s.file.Close()
		return socket{}, err
	}
	return s, nil
}

// datagram is a received datagram with its addresses.
type datagram struct {
	data []byte
	from netip.AddrPort
	to   netip.Addr // the destination on an IPv4 socket with IP_PKTINFO; otherwise invalid
}

// receive waits for a datagram. The caller drops the buffer. An error means that the socket is
// closed or that its deadline has passed.
func (s *socket) receive() (b *buffer, d datagram, err error) {
	err = s.raw.Read(func(fd uintptr) (received bool) {
		b, d, received = receive(fd)
		return received
	})
	return b, d, err
}

// poll returns a datagram without waiting. b is nil if there is none, or if the socket is closed.
func (s *socket) poll() (b *buffer, d datagram) {
	_ = s.raw.Control(func(fd uintptr) { b, d, _ = receive(fd) })
	return b, d
}

// receive reads a datagram without waiting, and tells whether there was one. The datagram is empty
// if it could not be read.
func receive(fd uintptr) (*buffer, datagram, bool) {
	var oob [64]byte
	b := takeBuffer()
	n, oobn, flags, from, err := unix.Recvmsg(int(fd), b[:], oob[:], unix.MSG_DONTWAIT)
	if errors.Is(err, unix.EAGAIN) {
		dropBuffer(b)
		return nil, datagram{}, false
	}
	if err != nil || flags&unix.MSG_TRUNC != 0 {
		return b, datagram{}, true // an error of this datagram alone
	}
	return b, datagram{data: b[:n], from: addrPort(from), to: destination(oob[:oobn])}, true
}

// send sends a datagram without waiting. A datagram is lost if the receiver's queue is full.
func (s *socket) send(data []byte, to netip.AddrPort) error {
	var sendErr error
	err := s.raw.Write(func(fd uintptr) bool {
		sendErr = unix.Sendto(int(fd), data, unix.MSG_DONTWAIT, sockaddr(to))
		return true
	})
	if err != nil {
		return err
	}
	return sendErr
}

func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))
	}
	return netip.AddrPort{}
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}

// destination returns the destination address in the IP_PKTINFO control message. It is the last
// field of struct in_pktinfo.
func destination(oob []byte) netip.Addr {
	for len(oob) > 0 {
		h, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			break
		}
		if h.Level == unix.SOL_IP && h.Type == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo {
			return netip.AddrFrom4([4]byte(data[8:12]))
		}
		oob = rest
	}
	return netip.Addr{}
}

// end is the relay's socket on the host, for one address family.
type end struct {
	socket
	relay  *Relay
	watch  *watch.Watch
	ip6    bool
	secret netip.Addr
	port   uint16
}

// newEnd makes the socket to which the kernel programs redirect datagrams. The socket for IPv4
// receives on all of 127.0.0.0/8. It is bound to the loopback device, so it receives nothing from
// outside.
func (r *Relay) newEnd(ip6 bool, secret netip.Addr) (*end, error) {
	e := &end{relay: r, ip6: ip6, secret: secret}
	at := netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
	if ip6 {
		at = netip.AddrPortFrom(netip.IPv6Loopback(), 0)
	}
	var err error
	e.socket, err = newSocket(r.config.Host, ip6, 0, func(fd int) error {
		if err := r.config.Enforcement.AllowRelay(fd, at); err != nil {
			return err
		}
		// If this fails, the queue has the default size.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bufferSize)
		if !ip6 {
			if err := unix.BindToDevice(fd, "lo"); err != nil {
				return fmt.Errorf("bind to loopback device: %w", err)
			}
			if err := unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_PKTINFO, 1); err != nil {
				return fmt.Errorf("set IP_PKTINFO: %w", err)
			}
		}
		if err := unix.Bind(fd, sockaddr(at)); err != nil {
			return fmt.Errorf("bind %s: %w", at, err)
		}
		name, err := unix.Getsockname(fd)
		if err != nil {
			return fmt.Errorf("read port: %w", err)
		}
		e.port = addrPort(name).Port()
		return nil
	})
	if err != nil {
		return nil, err
	}
	if e.watch, err = watch.Start(e.file, e.serve); err != nil {
		return nil, errors.Join(err, e.file.Close())
	}
	return e, nil
}

// serve forwards the datagrams that programs have sent. It is called again when there are more.
func (e *end) serve() bool {
	for {
		b, d := e.poll()
		if b == nil {
			return true
		}
		if to, proven := e.server(d); proven {
			e.relay.config.Work.Do(func() { e.relay.pass(e, d, to) })
		}
		dropBuffer(b)
	}
}

// server returns the server that a datagram is for. It returns false for a datagram that the kernel
// programs have not redirected.
func (e *end) server(d datagram) (netip.AddrPort, bool) {
	if e.ip6 {
		from, secret := d.from.Addr().As16(), e.secret.As16()
		return serverOf(d.from.Addr()), [14]byte(from[:14]) == [14]byte(secret[:14])
	}
	if d.from.Addr() != e.secret || !d.to.Is4() || !d.to.IsLoopback() {
		return netip.AddrPort{}, false
	}
	return serverOf(d.to), true
}

// serverOf returns the server behind an alias. An alias is the host address that stands for an
// address and a port on the container's loopback. aliasOf is the inverse.
func serverOf(alias netip.Addr) netip.AddrPort {
	if alias.Is4() {
		a := alias.As4()
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, a[1]}), uint16(a[2])<<8|uint16(a[3]))
	}
	a := alias.As16()
	return netip.AddrPortFrom(netip.IPv6Loopback(), uint16(a[14])<<8|uint16(a[15]))
}

func (e *end) aliasOf(server netip.AddrPort) (netip.Addr, bool) {
	high, low := byte(server.Port()>>8), byte(server.Port())
	if e.ip6 {
		a := e.secret.As16()
		a[14], a[15] = high, low
		return netip.AddrFrom16(a), server.Addr() == netip.IPv6Loopback()
	}
	if !server.Addr().Is4() {
		return netip.Addr{}, false
	}
	a := server.Addr().As4()
	return netip.AddrFrom4([4]byte{127, a[3], high, low}), a[0] == 127 && a[1] == 0 && a[2] == 0 && a[3] != 0 && a[3] != 255
}
