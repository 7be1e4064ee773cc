package policy

import (
	"net/netip"
	"syscall"
	"time"
)

// Binding is a bind(2) that a socket is allowed to make, and the name that the
// program shall see afterwards.
type Binding struct {
	Host netip.AddrPort // what the kernel is asked for
	View netip.AddrPort // what the program asked for; port 0: whatever it got
	// Second, if it is valid, is an address of IPv6 where connections are led to the socket
	// too, once it listens. Host is one of IPv4 then.
	Second netip.AddrPort
	// Ingress marks what a rule lets the container serve. A UDP socket so
	// bound may answer whoever sent it something.
	Ingress bool
	// Private marks a private port of the container's loopback.
	Private bool
	// Published, if it is valid, is the IPv6 address where a rule publishes a UDP socket of IPv4, which
	// has a private port.
	Published netip.AddrPort
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
	Host     netip.AddrPort // where it is
	Netns    uint64         // cookie of the namespace where that is
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

// Decided counts the calls about which the kernel programs alone have decided, and of those that
// were traced, Unreported for which there was no room.
type Decided struct {
	Connect, Send, Listen uint64
	Unreported            uint64
}

// Decision is what the kernel programs have decided about a connect(2) or a datagram.
type Decision struct {
	Time     time.Time
	Thread   int    // that made the call, in the host's pid namespace
	Syscall  string // connect or send
	Socket   uint64 // its SO_COOKIE
	Protocol int    // IPPROTO_TCP or IPPROTO_UDP
	// Asked is what the program wrote, and Led is where the call leads on the host. Port 0 of TCP
	// is where nobody listens.
	Asked, Led netip.AddrPort
	Endpoint   int           // its number in Table.Numbered, or -1
	Errno      syscall.Errno // with which the call fails, or 0
}
