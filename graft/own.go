package graft

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/keeper"
	"github.com/tsugiki/tsugiki/policy"
)

// # Servers that listen in the container's own namespace too
//
// A rule with +own (policy.Ingress.Own) makes a server listen at two places. Its socket is on the
// host, and a socket of the engine, an ownListener, listens at the same port in the container's own
// namespace. The kernel has one queue of connections for each network namespace, and nothing moves
// a connection from one to another. So:
//
//   - The engine accepts a connection of the ownListener, and connects to the program's listener on
//     the host, from the host. This second connection is the marker of the first. It carries
//     nothing. It makes the program's poll(2), epoll and accept(2) see that there is a connection.
//   - accept(2) is trapped. The engine accepts on the program's behalf. If it gets a marker, it
//     gives the program the connection that the marker stands for, and the marker ends.
//
// Before it connects, the engine asks the kernel whose listener is there: another process may have
// the port by now. The engine knows a marker by its source address as long as the engine's end is
// open: so long the host's kernel gives that address to no other connection to the listener. A
// socket of an earlier connection from that address may still be in the queue, but then it is
// closed.
//
// If the program's listener has gone, the connection is reset and the ownListener closed.

const (
	// ownMax is the number of ownListeners that a container may have. Each is a descriptor of this
	// process.
	ownMax = 64
	// markersMax is the number of connections that the ownListeners of a container accept before
	// the program does. Further connections wait in the queue, which has the program's backlog.
	markersMax = 32
	// markersPool is the same number for all containers together. Each connection takes two
	// descriptors.
	markersPool = 2048
)

// markersOfAll has an entry for each marker of this process.
var markersOfAll = make(chan struct{}, markersPool)

// ownListenerOf returns the ownListener whose markers come to a program's listener, or nil.
func (e *Engine) ownListenerOf(s *socket) *ownListener {
	at, known := e.Enforcer.BoundTo(s.file)
	if !known {
		return nil
	}
	e.ownMu.Lock()
	defer e.ownMu.Unlock()
	return e.own[ownKey(s.netns, at)]
}

func ownKey(netns uint64, at netip.AddrPort) Port {
	return Port{Netns: netns, Protocol: unix.IPPROTO_TCP, At: netip.AddrPortFrom(at.Addr().Unmap(), at.Port())}
}

// wantsOwn tells whether a rule makes a server listen in the container's own namespace too.
func (e call) wantsOwn(s *socket) bool {
	if e.OwnIsLoopback || e.Untrapped || s.local.Addr().Unmap().IsLoopback() {
		return false
	}
	return e.ownRule(s.local, s.v6only()).Own
}

// ownRule returns the rule with +own for an address at which a server listens in the container's own
// namespace; the zero value if there is none.
func (e call) ownRule(at netip.AddrPort, v6only bool) (none policy.Ingress) {
	at = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
	r := e.Table.IngressRule(policy.TCP, at)
	if !r.Own && at.Addr() == netip.IPv6Unspecified() && !v6only {
		r = e.Table.IngressRule(policy.TCP, netip.AddrPortFrom(netip.IPv4Unspecified(), at.Port()))
	}
	if !r.Own {
		return none
	}
	return r
}

// ownRuleFor returns the rule that decides about a peer of an ownListener. At all addresses that is the
// rule of the peer's family, as for the kernel programs (rule_of), if there is one.
func (e call) ownRuleFor(l *ownListener, from netip.Addr) policy.Ingress {
	at := netip.AddrPortFrom(l.view.Addr().Unmap(), l.view.Port())
	if from.Is4() && at.Addr() == netip.IPv6Unspecified() {
		at = netip.AddrPortFrom(netip.IPv4Unspecified(), at.Port())
	}
	if r := e.Table.IngressRule(policy.TCP, at); r.Endpoint != nil {
		return r
	}
	return e.ownRule(l.view, l.v6only)
}

// ownAdmits tells whether a server in the container's own namespace takes a connection. There the
// sources of its rule are addresses alone: a kubelet's probes come from the host, and the pod's own
// containers from a loopback address, or from one of the container's. Both are let in. If the rule
// is withdrawn, so are its sources, and nobody else is let in once the kernel looks for sources.
func (e *Engine) ownAdmits(l *ownListener, from netip.Addr, conn int) bool {
	from = from.Unmap().WithZone("")
	r := e.begin().ownRuleFor(l, from)
	open := r.From.Admits(from)
	if r.Endpoint == nil {
		open = !e.Enforcer.Sourced()
	}
	if open || from.IsLoopback() {
		return true
	}
	if to, err := localName(conn); err == nil && from == to.Addr().Unmap() {
		return true
	}
	host, err := e.host.Addresses()
	if err != nil {
		e.Log.Warn("it is not known whether a connection comes from the host", "peer", from, "err", err)
	}
	return slices.Contains(host, from)
}

// openOwn makes the ownListener of a program's socket that is about to listen on the host, if a
// rule says so. It serves once serve is called. If the address is taken in the container's own
// namespace, the error is a refusalError.
func (e call) openOwn(s *socket, backlog int) (*ownListener, error) {
	at, known := e.Enforcer.BoundTo(s.file)
	if !known || !e.wantsOwn(s) {
		return nil, nil
	}
	l := e.newOwnListener(e.places[s.netns], at)
	l.kind, l.v6only, l.view = s.kind(), s.v6only(), s.local
	return e.addOwn(l, backlog)
}

// newOwnListener makes an ownListener for a program's listener at an address of the host.
func (e *Engine) newOwnListener(place Place, at netip.AddrPort) *ownListener {
	l := &ownListener{
		at: ownKey(place.Cookie(), at), place: place, cgroup: e.Enforcer.Cgroup(), label: e.Enforcer.Mark, work: e.Work, log: e.Log,
		room: e.ownRoom, ended: make(chan struct{}), markers: map[netip.AddrPort]marked{},
	}
	l.admits = func(from netip.Addr, conn int) bool { return e.ownAdmits(l, from, conn) }
	return l
}

// addOwn makes an ownListener listen. If there is an equal one, for another socket that shares the
// port or for one that has gone, that one remains.
func (e *Engine) addOwn(l *ownListener, backlog int) (*ownListener, error) {
	e.ownMu.Lock()
	defer e.ownMu.Unlock()
	if have := e.own[l.at]; have != nil {
		if have.kind == l.kind && have.v6only == l.v6only && have.view == l.view {
			return have, have.listen(backlog)
		}
		e.closeOwn(have)
	}
	if len(e.own) >= ownMax {
		e.Log.Warn("server is not reached at the container's own address", "addr", l.view, "err", fmt.Sprintf("%d ports are served so", ownMax))
		return nil, nil
	}
	err := l.open(e.Own)
	if errors.Is(err, unix.EADDRINUSE) {
		e.closeEndedOwn(l.view.Port())
		err = l.open(e.Own)
	}
	if err == nil {
		err = l.listen(backlog)
	}
	if err != nil {
		if l.file != nil {
			l.file.Close()
		}
		return nil, refusal(err)
	}
	l.gone = func() {
		e.ownMu.Lock()
		defer e.ownMu.Unlock()
		if e.own[l.at] == l {
			e.closeOwn(l)
		}
	}
	e.own[l.at] = l
	return l, nil
}

// The caller of closeOwn and of closeEndedOwn holds e.ownMu.
func (e *Engine) closeOwn(l *ownListener) {
	delete(e.own, l.at)
	l.close()
}

// closeEndedOwn closes those ownListeners of a port whose program does not listen any more.
func (e *Engine) closeEndedOwn(port uint16) {
	for _, l := range e.own {
		if l.view.Port() != port {
			continue
		}
		if taken, err := isTaken(l.place, l.at); err == nil && !taken {
			e.closeOwn(l)
		}
	}
}

// exchange returns the connection that the program gets when its listener has accepted one. For a
// marker, that is the connection that the marker stands for, with the options that the program has
// set on the listener.
func (e call) exchange(l *ownListener, s *socket, file int, from netip.AddrPort) (int, netip.AddrPort) {
	conn, peer, is := l.take(file, from)
	if !is {
		return file, from
	}
	reset(file)
	if err := e.copyOptions(s, conn); err != nil {
		e.Log.Warn("connection has not the options of its listener", "peer", peer, "err", err)
	}
	return conn, peer
}

// recoverOwn makes servers of an earlier engine listen in the container's own namespace again. A
// server that has bound one address of the container then listens at all addresses of its rule.
func (e *Engine) recoverOwn(services []policy.Service) {
	c := e.begin()
	for _, s := range services {
		place := c.places[s.Netns]
		if place == nil || s.Protocol != unix.IPPROTO_TCP {
			continue
		}
		for _, r := range c.Table.IngressRules() {
			if !r.Own || !r.Ports.Contains(s.Port) || r.Endpoint.Addr != s.Host.Addr().Unmap() {
				continue
			}
			if err := e.recoverOwnOf(place, s, r); err != nil {
				e.Log.Warn("server is not reached at the container's own address", "addr", netip.AddrPortFrom(r.Addr, s.Port), "err", err)
			}
		}
	}
}

// recoverOwnOf does so for the server of a rule, if it listens.
func (e *Engine) recoverOwnOf(place Place, service policy.Service, r policy.Ingress) error {
	at := ownKey(service.Netns, service.Host)
	list, err := socketsAt(place, unix.IPPROTO_TCP, at.At.Port())
	if err != nil {
		return err
	}
	for _, found := range list {
		if found.At != at.At {
			continue
		}
		l := e.newOwnListener(place, service.Host)
		l.kind = keeper.Kind{Family: found.Family, Type: unix.SOCK_STREAM, Protocol: unix.IPPROTO_TCP}
		l.v6only, l.view = found.V6Only, netip.AddrPortFrom(r.Addr, service.Port)
		if found.Family == unix.AF_INET6 && r.Addr == netip.IPv4Unspecified() {
			l.view = netip.AddrPortFrom(netip.IPv6Unspecified(), service.Port)
		}
		l, err = e.addOwn(l, unix.SOMAXCONN)
		l.serve()
		return err
	}
	return nil
}

// CloseOwn closes all ownListeners.
func (e *Engine) CloseOwn() {
	e.ownMu.Lock()
	var closed []*ownListener
	for _, l := range e.own {
		closed = append(closed, l)
		e.closeOwn(l)
	}
	e.ownMu.Unlock()
	for _, l := range closed {
		l.wait()
	}
}
