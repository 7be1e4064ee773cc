package graft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/keeper"
)

// refusalError is an errno of the kernel for a call that the engine made on the program's behalf.
// The program gets this errno.
type refusalError struct {
	errno unix.Errno
}

func (r refusalError) Error() string { return "refused by the kernel: " + r.errno.Error() }

func refusal(err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return refusalError{errno}
	}
	return err
}

// kernelRefusal tells whether an error is the kernel's answer to socket(2).
func kernelRefusal(err error) (unix.Errno, bool) {
	var s *keeper.SocketError
	if errors.As(err, &s) {
		return unix.Errno(s.Errno), true
	}
	return 0, false
}

// answerFor turns a refusal into an answer with the program's errno. It returns any other error, a
// fault of ours, as an error.
func answerFor(err error) (Answer, error) {
	var r refusalError
	if errors.As(err, &r) {
		return fail(r.errno), nil
	}
	if errno, refused := kernelRefusal(err); refused {
		return fail(errno), nil
	}
	if errors.Is(err, ErrGone) {
		return Answer{}, nil
	}
	return Answer{}, err
}

// ignoreBadFile drops EBADF, which the kernel will return itself.
func ignoreBadFile(err error) error {
	if errors.Is(err, unix.EBADF) {
		return nil
	}
	return err
}

// socket has the facts about a file that the engine needs before it moves the file.
type socket struct {
	file     int
	family   int
	typ      int
	protocol int
	state    uint8  // of TCP, linux/tcp_states.h
	netns    uint64 // cookie of its namespace
	cookie   uint64
	local    netip.AddrPort
}

// again is the answer for a file that is no IP socket. If a call to an IP address meets a unix
// socket, and an earlier supervisor has begun to answer the call, that supervisor had put the unix
// socket there and was done.
func (s *socket) again(p Program) Answer {
	if s != nil && s.family == unix.AF_UNIX && p.Again() {
		return Answer{Action: Succeed}
	}
	return Answer{}
}

// inspect reads the facts about a file. If the file is no socket, its family is 0.
func inspect(file int) (*socket, error) {
	s := &socket{file: file}
	var err error
	if s.family, err = unix.GetsockoptInt(file, unix.SOL_SOCKET, unix.SO_DOMAIN); err != nil {
		if errors.Is(err, unix.ENOTSOCK) || errors.Is(err, unix.EBADF) {
			return s, nil
		}
		return nil, fmt.Errorf("inspect socket: %w", err)
	}
	if s.family != unix.AF_INET && s.family != unix.AF_INET6 {
		return s, nil
	}
	if s.typ, err = unix.GetsockoptInt(file, unix.SOL_SOCKET, unix.SO_TYPE); err == nil {
		s.protocol, err = unix.GetsockoptInt(file, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	}
	if err == nil {
		s.netns, err = unix.GetsockoptUint64(file, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	}
	if err == nil {
		s.cookie, err = unix.GetsockoptUint64(file, unix.SOL_SOCKET, unix.SO_COOKIE)
	}
	if err == nil && s.typ == unix.SOCK_STREAM {
		s.state, err = tcpState(file)
	}
	if err != nil {
		return nil, fmt.Errorf("inspect socket: %w", err)
	}
	s.local, err = localName(file)
	return s, err
}

const (
	tcpClose  = 7
	tcpListen = 10
)

// tcpState returns the first byte of struct tcp_info. Sockets of MPTCP and other protocols have no
// tcp_info. They count as closed, the state of a socket that nobody connected.
func tcpState(file int) (uint8, error) {
	var buf [1]byte
	n, err := getsockopt(file, unix.IPPROTO_TCP, unix.TCP_INFO, buf[:])
	switch {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOPROTOOPT), err == nil && n < 1:
		return tcpClose, nil
	case err != nil:
		return 0, err
	}
	return buf[0], nil
}

func localName(file int) (netip.AddrPort, error) { return nameByCall(unix.SYS_GETSOCKNAME, file) }

// nameByCall calls getsockname(2) or getpeername(2). unix.Getsockname is for calls that never wait,
// see getsockopt.
func nameByCall(call uintptr, file int) (netip.AddrPort, error) {
	var name [unix.SizeofSockaddrAny]byte
	size := uint32(len(name))
	_, _, errno := unix.Syscall(call, uintptr(file), uintptr(unsafe.Pointer(&name[0])), uintptr(unsafe.Pointer(&size)))
	if errno != 0 {
		return netip.AddrPort{}, fmt.Errorf("inspect socket: %w", errno)
	}
	port := binary.BigEndian.Uint16(name[2:])
	switch binary.NativeEndian.Uint16(name[:]) {
	case unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(name[4:8])), port), nil
	case unix.AF_INET6:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(name[8:24])), port), nil
	}
	return netip.AddrPort{}, nil
}

func (s *socket) isIP() bool { return s.family == unix.AF_INET || s.family == unix.AF_INET6 }
func (s *socket) is4() bool  { return s.family == unix.AF_INET }

// movable tells whether another socket can replace this one: a TCP socket that is neither connected
// nor listening, or a UDP socket.
func (s *socket) movable() bool {
	if !s.isIP() {
		return false
	}
	switch s.typ {
	case unix.SOCK_STREAM:
		return isTCP(s.protocol) && s.state == tcpClose
	case unix.SOCK_DGRAM:
		return isUDP(s.protocol)
	}
	return false
}

func (s *socket) v6only() bool {
	v, err := unix.GetsockoptInt(s.file, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY)
	return err == nil && v != 0
}

// kind returns the parameters of a socket that replaces this one.
func (s *socket) kind() keeper.Kind {
	k := keeper.Kind{Family: s.family, Type: s.typ, Protocol: unix.IPPROTO_UDP}
	if s.typ == unix.SOCK_STREAM {
		k.Protocol = unix.IPPROTO_TCP
	}
	return k
}

// shape returns an address in the form that a socket of this family takes.
func (s *socket) shape(addr netip.Addr) netip.Addr {
	if !s.is4() && addr.Is4() {
		return netip.AddrFrom16(addr.As16())
	}
	return addr
}
