package graft

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/policy"
)

// # A bind that is made once more
//
// A bind can have been made in answer to the same call: by an engine that ended before it could answer,
// or for a notification that a signal ended. It may lack the steps that follow a bind. Each of them can be
// repeated.

// bindRepeated answers a call that has bound its socket already.
func (e call) bindRepeated(p Program, s *socket, addr netip.AddrPort) Answer {
	if err := e.finishBind(p, s, addr); err != nil {
		e.Log.Error("server may not be reached", "pid", p.Thread(), "addr", addr, "err", err)
	}
	return Answer{Action: Succeed}
}

// finishBind does what follows a bind by an ingress rule. If the socket is bound to another address than the
// rule says by now, it does nothing.
func (e call) finishBind(p Program, s *socket, addr netip.AddrPort) error {
	rule, err := e.ingress(s, addr)
	ep, place := rule.Endpoint, e.places[s.netns]
	if err != nil || ep == nil || place == nil {
		return err
	}
	if s.is4() && ep.Addr.Is6() {
		to := netip.AddrPortFrom(ep.Addr, rule.HostPort(addr.Port()))
		private, known := e.Enforcer.BoundTo(s.file)
		if s.typ == unix.SOCK_STREAM || !known || !e.mayPublish(to) {
			return nil
		}
		if _, err = e.guardAt(place, publishedPort(place, to)); err == nil {
			err = e.Enforcer.Publish(private.Port(), to)
		}
		return err
	}
	b, is := e.boundBy(s, rule, addr)
	if !is {
		return nil
	}
	if b.Second.IsValid() {
		_, err = e.guard(place, b.Second)
	}
	e.serveAll(p, s.file, s.kind().Protocol, place, b)
	return err
}

// boundBy returns the binding by which a rule lets a server have an address of the container. It returns false if the
// server is not bound so.
func (e call) boundBy(s *socket, rule policy.Ingress, view netip.AddrPort) (b policy.Binding, is bool) {
	ep := rule.Endpoint
	at, known := e.Enforcer.BoundTo(s.file)
	if !known || !e.Enforcer.BoundByIngress(s.file) || ep.Type == endpoint.Unix || e.Host[ep.Netns].Cookie() != s.netns {
		return b, false
	}
	host := netip.AddrPortFrom(s.shape(ep.Addr), rule.HostPort(view.Port()))
	b = e.bothFamilies(s, policy.Binding{Host: host, View: view, Ingress: true, Rule: rule.Number}, ep)
	return b, at.Addr().Unmap() == b.Host.Addr().Unmap() && (b.Host.Port() == 0 || b.Host.Port() == at.Port())
}
