package graft

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/policy"
)

// # Translated datagrams
//
// A UDP socket stays one of IPv4, whether its program sends to virtual addresses or not: the kernel
// programs translate each datagram (bpf/udp.h). What is left to the engine is bind(2) of what a rule
// leads to an IPv6 address. Such a socket has a private port, as all on the container's loopback, and
// is published. The IPv6 address and port are bound by a guard, which hears nothing: so they are
// nobody else's.

// publish binds a UDP socket of IPv4, and has it hear what is sent to an IPv6 address.
func (e call) publish(p Program, s *socket, at, view netip.AddrPort) (Answer, error) {
	if at.Addr().IsUnspecified() || at.Port() == 0 || !e.Enforcer.Publishes() || !e.Untrapped {
		return fail(unix.EADDRNOTAVAIL), nil
	}
	place := e.places[s.netns]
	guarded := Port{Netns: place.Cookie(), Protocol: unix.IPPROTO_UDP, At: at}
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
	// The kernel would tell the port that the program has asked for.
	private, _ := e.Enforcer.BoundTo(s.file)
	if err := e.Enforcer.Publish(private.Port(), at); err != nil {
		undo()
		return Answer{}, errors.Join(err, e.Enforcer.ForgetBind(s.file))
	}
	return Answer{Action: Succeed}, nil
}
