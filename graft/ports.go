package graft

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/policy"
)

// # Ports of the host
//
// The rules of several containers may lead to the same port of the host. The kernel lets two
// sockets share one that both set SO_REUSEPORT and have the same user, or for UDP both set
// SO_REUSEADDR: it knows of users, not of containers. So whose a port is, Ports says. What
// Ports does not know, a socket of ours tells that is bound to the port for a moment.

// Port is a port of the host's, and the address at which it is bound.
type Port struct {
	Netns    uint64 // cookie of its namespace
	Protocol int    // unix.IPPROTO_TCP or unix.IPPROTO_UDP
	At       netip.AddrPort
	// Dual says that At is the wildcard of IPv6, and stands for that of IPv4 too.
	Dual bool
}

// Ports knows which ports of the host are which container's.
type Ports interface {
	// Bind calls bind, which binds a socket of the container's to a port, and notes that the
	// port is the container's if it succeeds. Where the port is another container's, bind is
	// not called, and the error is EADDRINUSE.
	//
	// taken tells whether some socket has a port. It is nil where the kernel does not let
	// the socket share the port, whoever has it.
	Bind(p Port, taken func(Port) (bool, error), bind func() error) error
	// Reserved tells whether a port of the range, at the address of p, is reserved for another
	// container.
	Reserved(p Port, ports endpoint.PortRange) bool
	// Others tells whether the port is another container's by now.
	Others(p Port) bool
}

// bindServer binds a host socket to what a rule lets the container serve.
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

// mayListen tells whether the port that an ingress rule has bound a socket to is still the
// container's. The kernel lets sockets that set SO_REUSEADDR have the same port as long as
// none of them listens.
func (e *Engine) mayListen(s *socket) (bool, error) {
	at, known := e.Enforcer.BoundTo(s.file)
	if !known {
		return true, nil // the kernel programs see to it
	}
	p, err := portOf(s.file, s.netns, at)
	return err == nil && !e.Ports.Others(p), err
}

// portOf is the port at an address of the host's that a socket is to be bound to.
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

// isTaken tells whether a socket has a port: one of TCP that listens, or that does not set
// SO_REUSEADDR; any of UDP. Connections that linger in TIME_WAIT are in nobody's way.
func isTaken(place Place, p Port) (bool, error) {
	err := place.Do(func() error {
		file, err := p.probe()
		if err != nil {
			return err
		}
		defer unix.Close(file)
		return unix.Bind(file, sockaddrOf(p.At))
	})
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return true, nil
	case errors.Is(err, unix.EADDRNOTAVAIL), err == nil:
		return false, nil // what else is wrong with it, the program's own bind says
	}
	return false, fmt.Errorf("try port %s: %w", p.At, err)
}

// nobodysUser is a user whom no program has: no socket shares a port with one of his.
const nobodysUser = 1<<32 - 2

// probe makes a socket for a port that passes over connections in TIME_WAIT, as those of
// servers do. It is to be called on a thread that then ends.
func (p Port) probe() (int, error) {
	_, _ = unix.SetfsuidRetUid(nobodysUser)
	user, _ := unix.SetfsuidRetUid(-1) // changes nothing
	file, err := p.socket()
	if err != nil {
		return -1, err
	}
	if p.Protocol == unix.IPPROTO_TCP {
		err = unix.SetsockoptInt(file, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		// TIME_WAIT of a server that sets nothing else.
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

// socket makes a socket that can be bound to a port.
func (p Port) socket() (int, error) {
	family, typ := unix.AF_INET6, unix.SOCK_DGRAM
	if p.At.Addr().Is4() {
		family = unix.AF_INET
	}
	if p.Protocol == unix.IPPROTO_TCP {
		typ = unix.SOCK_STREAM
	}
	file, err := unix.Socket(family, typ|unix.SOCK_CLOEXEC, 0)
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
