package policy

import "net/netip"

// Binding is a bind(2) that a socket is allowed to make, and the name that the
// program shall see afterwards.
type Binding struct {
	Host netip.AddrPort // what the kernel is asked for
	View netip.AddrPort // what the program asked for; port 0: whatever it got
	// Ingress marks what a rule lets the container serve. A UDP socket so
	// bound may answer whoever sent it something.
	Ingress bool
	// Private marks a private port of the container's loopback.
	Private bool
	// Named, if not 0, says that the program named the endpoint itself (AF_GRAFT):
	// the socket may connect through it too, to all that is not special, until it
	// is withdrawn. See Name.
	Named uint32
	// Netns is the cookie of that endpoint's namespace.
	Netns uint64
	// Call is the id of the bind(2) that this answers, or 0.
	Call uint64
}

// Service is a port that Serve was called for, as the container's programs know it.
type Service struct {
	Protocol int
	Port     uint16
	Is4      bool
	Netns    uint64 // cookie of the namespace where it is
}

// Denied counts what the kernel refused a container, by the kind of call; Leave are
// packets that were about to leave a host socket, and Enter datagrams that came for one.
type Denied struct {
	Connect, Bind, Send, SetOption, Leave, Enter uint64
}

// Connections counts the TCP connections of the container's host sockets that
// were established, by who began.
type Connections struct {
	Out, In uint64
}
