package policy

import (
	"net/netip"
	"syscall"
	"time"
)

// Binding is a bind(2) that a socket is allowed to make, and the name that the program sees
// afterwards.
type Binding struct {
	Host netip.AddrPort // address for the kernel's bind
	View netip.AddrPort // address that the program asked for; port 0: the port of Host
	// Second, if it is valid, is an IPv6 address whose connections are led to the socket too, once
	// it listens. Host is an IPv4 address then.
	Second netip.AddrPort
	// Rule is the number of the ingress rule by which the socket is bound, and SecondRule that of
	// Second; 0: by none.
	Rule, SecondRule int
	// Ingress marks an address that a rule lets the container serve. A UDP socket with such a
	// binding may answer all who have sent to it.
	Ingress bool
	// Private marks a private port of the container's loopback.
	Private bool
	// Published, if it is valid, is the IPv6 address at which a rule publishes an IPv4 UDP socket.
	// The socket has a private port.
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

// Service is a port for which Serve was called, as the container's programs know it.
type Service struct {
	Protocol int
	Port     uint16
	Is4      bool
	Host     netip.AddrPort // address of the server
	Netns    uint64         // cookie of the namespace of Host
}

// Denied counts the kernel's refusals to a container, by the kind of call. Leave counts packets
// that were about to leave a host socket, and Enter counts datagrams that came for one, and SYNs
// that came for a listener.
type Denied struct {
	Connect, Bind, Send, SetOption, Leave, Enter uint64
}

// Connections counts the established TCP connections of the container's host sockets, by the side
// that began.
type Connections struct {
	Out, In uint64
}

// Decided counts the calls about which the kernel programs alone have decided. Unreported counts
// the traced calls for whose report there was no room.
type Decided struct {
	Connect, Send, Listen uint64
	Unreported            uint64
}

// Decision is a decision of the kernel programs about a connect(2) or a datagram.
type Decision struct {
	Time     time.Time
	Thread   int    // that made the call, in the host's pid namespace
	Syscall  string // connect or send
	Socket   uint64 // its SO_COOKIE
	Protocol int    // IPPROTO_TCP or IPPROTO_UDP
	// Asked is the address from the program, and Led is the address on the host to which the call
	// leads. Nobody listens at TCP port 0.
	Asked, Led netip.AddrPort
	Endpoint   int           // its number in Table.Numbered, or -1
	Errno      syscall.Errno // with which the call fails, or 0
}
