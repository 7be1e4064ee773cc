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

// # Servers of both families
//
// A program that binds the wildcard of IPv6 without IPV6_V6ONLY serves IPv4 too, and a rule of each
// family may name its port. Its socket is bound to the host's IPv4 address, and the kernel programs
// lead connections for the IPv6 address to it too (bpf/steer.bpf.c). A guard holds the port of the
// IPv6 address: a socket of this process that is bound to the port and never listens. It stays
// until the engine ends, because nothing tells when the program's listeners have gone.

// guardsMax is the number of guards that a container may have. Each is a descriptor of this
// process.
const guardsMax = 64

// bothFamilies turns a bind by an IPv6 rule into one for both families, if an IPv4 rule names the
// port too.
func (e call) bothFamilies(s *socket, b policy.Binding, ep *endpoint.Endpoint) policy.Binding {
	if b.View.Addr() != netip.IPv6Unspecified() || s.typ != unix.SOCK_STREAM || s.v6only() {
		return b
	}
	if ep.Type != endpoint.IPv6 || ep.Addr.IsUnspecified() || b.Host.Port() == 0 {
		return b // the host's wildcard is of both families, and port 0 would give two ports
	}
	rule := e.Table.IngressRule(policy.TCP, netip.AddrPortFrom(netip.IPv4Unspecified(), b.View.Port()))
	other, port := rule.Endpoint, uint16(0)
	if other != nil {
		port = rule.HostPort(b.View.Port())
	}
	if other == nil || other.Type != endpoint.IPv4 || other.Netns != ep.Netns || port == 0 {
		return b
	}
	place := e.Host[ep.Netns]
	err := e.Enforcer.Steer(place.Cookie(), place.Do)
	if err == nil && !e.mayGuard(guardPort(place, b.Host)) {
		err = fmt.Errorf("%d ports are served so", guardsMax)
	}
	if err != nil {
		e.Log.Warn("server is not reached over IPv4", "addr", b.View, "err", err)
		return b
	}
	b.Host, b.Second = netip.AddrPortFrom(s.shape(other.Addr), port), b.Host
	b.Rule, b.SecondRule = rule.Number, b.Rule
	return b
}

func guardPort(place Place, at netip.AddrPort) Port {
	return Port{Netns: place.Cookie(), Protocol: unix.IPPROTO_TCP, At: at}
}

func (e *Engine) mayGuard(p Port) bool {
	e.guardsMu.Lock()
	defer e.guardsMu.Unlock()
	_, has := e.guards[p]
	return has || len(e.guards) < guardsMax
}

// guard holds the port of an address whose connections are led elsewhere. The caller calls undo if
// the bind fails.
func (e *Engine) guard(place Place, at netip.AddrPort) (undo func(), err error) {
	return e.guardAt(place, guardPort(place, at))
}

func (e *Engine) guardAt(place Place, p Port) (undo func(), err error) {
	e.guardsMu.Lock()
	defer e.guardsMu.Unlock()
	if _, has := e.guards[p]; has {
		return func() {}, nil
	}
	file := -1
	err = e.Ports.Bind(p, nil, func() error {
		return place.Do(func() (err error) {
			file, err = p.guard()
			return err
		})
	})
	if err != nil {
		return nil, refusal(err)
	}
	e.guards[p] = file
	return func() {
		e.guardsMu.Lock()
		defer e.guardsMu.Unlock()
		delete(e.guards, p)
		unix.Close(file)
	}, nil
}

// guard makes a socket that is bound to a port and never listens.
func (p Port) guard() (int, error) {
	file, err := p.socket(0)
	if err != nil {
		return -1, err
	}
	err = unix.Bind(file, sockaddr.Of(p.At))
	if errors.Is(err, unix.EADDRINUSE) && p.Protocol == unix.IPPROTO_TCP { // perhaps only by connections in TIME_WAIT
		var restore func()
		if restore, err = letTogether(file); err == nil {
			err = unix.Bind(file, sockaddr.Of(p.At))
			restore()
		}
	}
	if err != nil {
		unix.Close(file)
		return -1, err
	}
	return file, nil
}

// steerListener steers and guards for a server that is about to listen at an address of the container. The engine that has
// bound the server may have ended since, and recoverGuards knows only servers that listen.
func (e call) steerListener(s *socket, view netip.AddrPort) {
	if view.Addr() != netip.IPv6Unspecified() {
		return
	}
	rule, err := e.ingress(s, view)
	if err == nil && rule.Endpoint != nil {
		if b, is := e.boundBy(s, rule, view); is && b.Second.IsValid() {
			_, err = e.guard(e.places[s.netns], b.Second)
		}
	}
	if err != nil {
		e.Log.Warn("server may not be reached over IPv6", "addr", view, "err", err)
	}
}

// recoverGuards steers and guards again for servers of an earlier engine that still listen.
func (e *Engine) recoverGuards(services []policy.Service) {
	for _, s := range services {
		place := e.now.Load().places[s.Netns]
		if place == nil || s.Is4 || s.Protocol != unix.IPPROTO_TCP {
			continue
		}
		is, err := e.Enforcer.Steered(s.Netns, s.Host)
		if is {
			if err = e.Enforcer.Steer(s.Netns, place.Do); err == nil {
				_, err = e.guard(place, s.Host)
			}
		}
		if err != nil {
			e.Log.Warn("server may not be reached over IPv6", "addr", s.Host, "err", err)
		}
	}
}

// closeGuards stops leading connections to the container's servers.
func (e *Engine) closeGuards() error {
	e.guardsMu.Lock()
	defer e.guardsMu.Unlock()
	var errs []error
	for p, file := range e.guards {
		errs = append(errs, e.Enforcer.EndSteering(p.Netns, p.At), unix.Close(file))
	}
	clear(e.guards)
	return errors.Join(errs...)
}
