package graft

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/policy"
)

// # Translated datagrams
//
// A UDP socket stays an IPv4 socket, whether its program sends to virtual addresses or not: the
// kernel programs translate each datagram (bpf/udp.h). The engine answers only a bind(2) that a
// rule leads to an IPv6 address. Such a socket has a private port, as all sockets on the
// container's loopback, and is published. A guard, which receives nothing, is bound to the IPv6
// address and port, so that nobody else can have them.

// recoverPublished holds the addresses again at which an earlier engine has published servers.
func (e *Engine) recoverPublished() error {
	list, err := e.Enforcer.Published()
	for _, at := range list {
		if _, err := e.guardAt(e.host, publishedPort(e.host, at)); err != nil {
			e.Log.Warn("server may not be reached over IPv6", "addr", at, "err", err)
		}
	}
	return err
}

// mayPublish tells whether a server can be published at an address.
func (e *Engine) mayPublish(at netip.AddrPort) bool {
	return !at.Addr().IsUnspecified() && at.Port() != 0 && e.Enforcer.Publishes() && e.Untrapped
}

func publishedPort(place Place, at netip.AddrPort) Port {
	return Port{Netns: place.Cookie(), Protocol: unix.IPPROTO_UDP, At: at}
}

// publish binds an IPv4 UDP socket, and has datagrams to an IPv6 address delivered to it.
func (e call) publish(p Program, s *socket, at, view netip.AddrPort) (Answer, error) {
	if !e.mayPublish(at) {
		return fail(unix.EADDRNOTAVAIL), nil
	}
	place := e.places[s.netns]
	guarded := publishedPort(place, at)
	if !e.mayGuard(guarded) {
		return fail(unix.EADDRNOTAVAIL), nil
	}
	undo, err := e.guardAt(place, guarded)
	if err != nil {
		return answerFor(err)
	}
	any := netip.AddrPortFrom(netip.IPv4Unspecified(), view.Port())
	err = e.bindPrivate(s, policy.Binding{Host: any, View: view, Published: at, Call: p.Call()})
	if err != nil {
		undo()
		return answerFor(err)
	}
	// getsockname(2) would show the port that the program has asked for.
	private, _ := e.Enforcer.BoundTo(s.file)
	if err := e.Enforcer.Publish(private.Port(), at); err != nil {
		undo()
		return Answer{}, errors.Join(err, e.Enforcer.ForgetBind(s.file))
	}
	return Answer{Action: Succeed}, nil
}
