package graft

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/policy"
)

// # A loopback on the host
//
// Where Config.Untrapped is set, the container's loopback is on the host, and the kernel programs
// lead connects and datagrams there (bpf/loopback.h). The engine answers only bind(2). If the
// program binds a port P on a wildcard or a loopback address, the socket gets a port H of the host
// instead, P's private port. The first bind of P chooses H. Each later bind of P gets H too, so
// that the kernel decides which of the program's sockets may share P.

// privateTries is the number of private ports to try for one bind.
const privateTries = 16

// bindOnLoopback answers a bind that no rule covers, in a container whose loopback is on the host.
func (e call) bindOnLoopback(p Program, s *socket, addr netip.AddrPort) (Answer, error) {
	at := addr.Addr().Unmap()
	var err error
	switch {
	case e.Translator != nil && at == e.Translation.Own:
		err = e.bindOwn4(p, s, addr)
	case !at.IsUnspecified() && !at.IsLoopback():
		err = e.bindClient(p, s, addr)
	case addr.Port() == 0:
		return Answer{}, nil // the kernel programs let it pass
	default:
		if err = e.mayBind(p, addr.Port()); err == nil {
			err = e.bindPrivate(s, policy.Binding{Host: addr, View: addr, Call: p.Call()})
		}
	}
	if err != nil {
		return answerFor(err)
	}
	return Answer{Action: Succeed}, nil
}

// privilegedPorts is the first port that a program may bind without CAP_NET_BIND_SERVICE, unless
// its namespace sets another (ip-sysctl, ip_unprivileged_port_start).
const privilegedPorts = 1024

// mayBind refuses a port of the container that the program may not bind.
func (e call) mayBind(p Program, port uint16) error {
	if port >= privilegedPorts {
		return nil
	}
	var start uint16
	err := e.Own.Do(func() error {
		text, err := os.ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start")
		if err == nil {
			_, err = fmt.Sscan(string(text), &start)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("find the container's privileged ports: %w", err)
	}
	if port >= start {
		return nil
	}
	if may, err := p.Capable(unix.CAP_NET_BIND_SERVICE); may || err != nil {
		return err
	}
	return refusalError{unix.EACCES}
}

// bindClient binds a source address of the container on the host. Only peers that the socket has
// contacted reach it there, so the kernel chooses its port, whatever port the program sees.
func (e call) bindClient(p Program, s *socket, addr netip.AddrPort) error {
	source := Source(e.Table, addr.Addr().Unmap().Is6())
	if !source.IsValid() || !source.IsUnspecified() && source != addr.Addr().Unmap() {
		return refusalError{unix.EADDRNOTAVAIL}
	}
	host := netip.AddrPortFrom(addr.Addr(), 0)
	return e.bindHost(s.file, e.places[s.netns], policy.Binding{Host: host, View: addr, Call: p.Call()})
}

// bindPrivate binds the private port of the program's port in b.View, at the address of b.Host.
func (e call) bindPrivate(s *socket, b policy.Binding) error {
	place, protocol, wanted := e.places[s.netns], s.kind().Protocol, b.View.Port()
	b.Private = true
	var lost uint16
	again := false
	for range privateTries {
		port, err := e.Enforcer.PrivatePort(protocol, wanted, lost, 0, nil)
		if err == nil && port == 0 {
			var offered uint16
			if offered, err = e.freePort(place, protocol, wanted, lost); err == nil {
				port, err = e.privateBecomes(place, protocol, wanted, lost, offered)
			}
		}
		if err != nil {
			return err
		}
		if port == 0 {
			continue // offered is the private port of another port that no socket has now
		}
		b.Host = netip.AddrPortFrom(b.Host.Addr(), port)
		err = e.bindPrivateAt(s.file, place, b)
		if err == nil { // the row may have been deleted while no socket had the port
			_, err = e.privateBecomes(place, protocol, wanted, 0, port)
		}
		var r refusalError
		if !errors.As(err, &r) || r.errno != unix.EADDRINUSE {
			return err
		}
		others, oerr := e.othersHave(place, privatePort(place, protocol, port))
		switch {
		case others:
			lost = port
		case again || oerr != nil:
			return errors.Join(err, oerr) // the program itself has the port
		default: // perhaps another container's engine had it for a moment, to check whether it is free
			again = true
		}
	}
	return refusalError{unix.EADDRINUSE}
}

// privateBecomes calls PrivatePort with an offered port.
func (e call) privateBecomes(place Place, protocol int, port, lost, offered uint16) (uint16, error) {
	return e.Enforcer.PrivatePort(protocol, port, lost, offered, func(protocol int) (map[uint16]bool, error) {
		list, err := socketsAt(place, protocol, 0)
		used := map[uint16]bool{}
		for _, s := range list {
			used[s.At.Port()] = true
		}
		return used, err
	})
}

// socketsAt returns the sockets of a place that have a port; port 0 stands for any.
func socketsAt(place Place, protocol int, port uint16) (list []netns.Socket, err error) {
	err = place.Do(func() (err error) {
		list, err = netns.SocketsAt(protocol, port)
		return err
	})
	return list, err
}

// privatePort returns a port that belongs to one container on all addresses of both families.
func privatePort(place Place, protocol int, port uint16) Port {
	return Port{Netns: place.Cookie(), Protocol: protocol, At: netip.AddrPortFrom(netip.IPv6Unspecified(), port), Dual: true}
}

func (e *Engine) bindPrivateAt(file int, place Place, b policy.Binding) error {
	p, err := portOf(file, place.Cookie(), b.Host)
	if err != nil {
		return err
	}
	p = privatePort(place, p.Protocol, b.Host.Port())
	share := reuseOf(file)
	var taken func(Port) (bool, error)
	if share.port != 0 || share.addr != 0 && p.Protocol == unix.IPPROTO_UDP {
		taken = func(p Port) (bool, error) { return e.othersHave(place, p) }
	}
	return refusal(e.Ports.Bind(p, taken, func() error { return e.bindAllowed(file, b, share) }))
}

// othersHave tells whether others have a private port by now: it is reserved for another container,
// or a socket outside the container's loopback has it.
func (e *Engine) othersHave(place Place, p Port) (bool, error) {
	if e.Ports.Reserved(p, endpoint.PortRange{First: p.At.Port(), Last: p.At.Port()}) {
		return true, nil
	}
	list, err := socketsAt(place, p.Protocol, p.At.Port())
	for _, s := range list {
		if s.Cgroup != 0 && !e.Enforcer.SharesLoopback(s.Cgroup) {
			return true, nil
		}
	}
	return false, err
}

// freePort finds a port that no socket of the place has on any address. It returns the wanted port
// if the kernel has chosen that for a socket of the container. Otherwise the program cannot choose
// a free port by its bind: remotes would see that port.
func (e *Engine) freePort(place Place, protocol int, wanted, lost uint16) (uint16, error) {
	if wanted != lost && e.Ephemeral.Contains(wanted) {
		p := privatePort(place, protocol, wanted)
		_, err := claimIn(place, p)
		if errors.Is(err, unix.EADDRINUSE) {
			if others, err := e.othersHave(place, p); !others {
				return wanted, err
			}
		}
	}
	for try := range privateTries {
		p := privatePort(place, protocol, e.candidate(try))
		port, err := claimIn(place, p)
		if errors.Is(err, unix.EADDRINUSE) && p.At.Port() != 0 {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("find a free port: %w", refusal(err))
		}
		if !e.Ports.Reserved(p, endpoint.PortRange{First: port, Last: port}) {
			return port, nil
		}
	}
	return 0, refusalError{unix.EADDRINUSE}
}

// candidate returns a port to try. Ports above the ephemeral range come first: the kernel never
// chooses them for a client, so that a restarted server finds its port free. 0 stands for the
// kernel's choice, if there are no such ports or many are taken.
func (e *Engine) candidate(try int) uint16 {
	const last = 1<<16 - 1
	if try >= privateTries/2 || e.Ephemeral.Last == last {
		return 0
	}
	port := e.Ephemeral.Last + 1 + uint16(rand.IntN(int(last-e.Ephemeral.Last)))
	if e.keeps(port) {
		return 0
	}
	return port
}

// keeps tells whether the host's administrator reserves a port for programs that name it.
func (e *Engine) keeps(port uint16) bool {
	return slices.ContainsFunc(e.Kept, func(r endpoint.PortRange) bool { return r.Contains(port) })
}

func claimIn(place Place, p Port) (port uint16, err error) {
	err = place.Do(func() (err error) {
		port, err = p.claim()
		return err
	})
	return port, err
}

// claim binds a socket to the port for a moment. For port 0, the kernel chooses the port.
func (p Port) claim() (uint16, error) {
	file, err := p.socket(0)
	if errors.Is(err, unix.EAFNOSUPPORT) { // the host has no IPv6
		p.At = netip.AddrPortFrom(netip.IPv4Unspecified(), p.At.Port())
		file, err = p.socket(0)
	}
	if err != nil {
		return 0, err
	}
	defer unix.Close(file)
	if err := unix.Bind(file, sockaddr.Of(p.At)); err != nil {
		return 0, err
	}
	name, err := localName(file)
	return name.Port(), err
}
