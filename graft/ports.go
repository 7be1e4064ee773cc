package graft

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/policy"
)

// # Ports of the host
//
// The rules of several containers may lead to the same port of the host. The kernel lets two
// sockets share a port if both set SO_REUSEPORT and have the same user, or for UDP if both set
// SO_REUSEADDR. It distinguishes users, not containers. So Ports decides which container has a
// port. If Ports does not know, a socket of ours that is bound to the port for a moment tells.

// Port is a port of the host and the address at which it is bound.
type Port struct {
	Netns    uint64 // cookie of its namespace
	Protocol int    // unix.IPPROTO_TCP or unix.IPPROTO_UDP
	At       netip.AddrPort
	// Dual says that At is the IPv6 wildcard and stands for the IPv4 wildcard too.
	Dual bool
}

// Ports knows which container has which ports of the host.
type Ports interface {
	// Bind calls bind, which binds a socket of the container to a port. If bind succeeds, Bind
	// notes that the container has the port. If another container has the port, Bind does not call
	// bind and returns EADDRINUSE.
	//
	// taken tells whether some socket has a port. It is nil if the kernel does not let the socket
	// share the port with any other.
	Bind(p Port, taken func(Port) (bool, error), bind func() error) error
	// Reserved tells whether a port of the range, at the address of p, is reserved for another
	// container.
	Reserved(p Port, ports endpoint.PortRange) bool
	// Others tells whether another container has the port by now.
	Others(p Port) bool
}

// bindServer binds a host socket to an address that a rule lets the container serve.
func (e *Engine) bindServer(file int, place Place, b policy.Binding) error {
	if b.Host.Port() == 0 {
		return e.bindAnyPort(file, place, b)
	}
	p, err := portOf(file, place.Cookie(), b.Host)
	if err != nil {
		return err
	}
	undo := func() {}
	if b.Second.IsValid() {
		if undo, err = e.guard(place, b.Second); err != nil {
			return err
		}
	}
	share := reuseOf(file)
	var taken func(Port) (bool, error)
	if share.port != 0 || share.addr != 0 && p.Protocol == unix.IPPROTO_UDP {
		taken = func(p Port) (bool, error) { return isTaken(place, p) }
	}
	if err := e.Ports.Bind(p, taken, func() error { return e.bindAllowed(file, b, share) }); err != nil {
		undo()
		return refusal(err)
	}
	return nil
}

// mayListen tells whether the container still has the port to which an ingress rule has bound a
// socket. The kernel lets sockets with SO_REUSEADDR have the same port as long as none of them
// listens.
func (e *Engine) mayListen(s *socket) (bool, error) {
	at, known := e.Enforcer.BoundTo(s.file)
	if !known {
		return true, nil // the kernel programs decide
	}
	p, err := portOf(s.file, s.netns, at)
	return err == nil && !e.Ports.Others(p), err
}

// portOf returns the Port for an address of the host to which a socket will be bound.
func portOf(file int, netns uint64, at netip.AddrPort) (Port, error) {
	p := Port{Netns: netns, Protocol: unix.IPPROTO_UDP, At: netip.AddrPortFrom(at.Addr().Unmap(), at.Port())}
	typ, err := unix.GetsockoptInt(file, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return p, fmt.Errorf("inspect socket: %w", err)
	}
	if typ == unix.SOCK_STREAM {
		p.Protocol = unix.IPPROTO_TCP
	}
	if p.At.Addr() == netip.IPv6Unspecified() {
		only, err := unix.GetsockoptInt(file, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY)
		if err != nil {
			return p, fmt.Errorf("inspect socket: %w", err)
		}
		p.Dual = only == 0
	}
	return p, nil
}

// isTaken tells whether a socket has a port: a TCP socket that listens or does not set
// SO_REUSEADDR, or any UDP socket. Connections in TIME_WAIT do not count.
func isTaken(place Place, p Port) (bool, error) {
	err := place.Do(func() error {
		file, err := p.probe()
		if err != nil {
			return err
		}
		defer unix.Close(file)
		return unix.Bind(file, sockaddr.Of(p.At))
	})
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return true, nil
	case errors.Is(err, unix.EADDRNOTAVAIL), err == nil:
		return false, nil // the program's own bind reports other errors
	}
	return false, fmt.Errorf("try port %s: %w", p.At, err)
}

// nobodysUser is a user of no program: no other socket shares a port with a socket of this user.
const nobodysUser = 1<<32 - 2

// probe makes a socket that can have a port in spite of connections in TIME_WAIT, as sockets of
// servers can. It has to be called on a thread that then ends.
func (p Port) probe() (int, error) {
	_, _ = unix.SetfsuidRetUid(nobodysUser)
	user, _ := unix.SetfsuidRetUid(-1) // changes nothing
	file, err := p.socket(0)
	if err != nil {
		return -1, err
	}
	if p.Protocol == unix.IPPROTO_TCP {
		err = unix.SetsockoptInt(file, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		// For TIME_WAIT of a server that sets only SO_REUSEPORT.
		if err == nil && user == nobodysUser {
			err = unix.SetsockoptInt(file, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		}
	}
	if err != nil {
		unix.Close(file)
		return -1, err
	}
	return file, nil
}

// socket makes a socket that can be bound to a port. flags are those of socket(2), besides SOCK_CLOEXEC.
func (p Port) socket(flags int) (int, error) {
	family, typ := unix.AF_INET6, unix.SOCK_DGRAM
	if p.At.Addr().Is4() {
		family = unix.AF_INET
	}
	if p.Protocol == unix.IPPROTO_TCP {
		typ = unix.SOCK_STREAM
	}
	file, err := unix.Socket(family, typ|unix.SOCK_CLOEXEC|flags, 0)
	if err != nil || family == unix.AF_INET {
		return file, err
	}
	only := 1
	if p.Dual {
		only = 0
	}
	if err := unix.SetsockoptInt(file, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, only); err != nil {
		unix.Close(file)
		return -1, err
	}
	return file, nil
}
