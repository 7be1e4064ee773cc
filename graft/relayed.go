package graft

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/keeper"
)

// # Relayed connections
//
// The messages of some protocols name addresses. A Gateway rewrites them. So a connection of such a
// protocol is two: one of the engine and the peer, by IPv6, and one of the program and the engine, on the
// container's loopback (bpf/standin.h). The program sees the names that it would see without the
// engine.
//
// connect(2) has to end as the connection to the peer ends, also for programs that do not wait. So the
// program's socket connects to a listener of the engine that drops all packets, the sink: it waits. When
// the peer has answered, a socket with the sink's name connects to the program's (a simultaneous open,
// RFC 9293 section 3.5). If the peer refuses, the program's socket gets a reset, or an ICMP error with
// the same errno. If the peer does not answer, the program's socket runs into its own time limit.
//
// A server's connection is accepted by IPv6. The program gets a socket that was connected so.

// Gateway rewrites the messages of connections. Its methods may be called by many goroutines at
// once.
type Gateway interface {
	// Serves tells whether connections to a port, and those that a server accepts at a port, are
	// relayed.
	Serves(port uint16) bool
	// Relay carries a connection until it has ended, and closes it.
	Relay(Relayed)
	// Full refuses a client of a server's port for whom there is no room, and closes its connection.
	Full(client net.Conn, port uint16)
}

// Relayed is a connection of a program and its peer.
type Relayed struct {
	Program, Peer net.Conn
	// ServerInside says that the program has accepted the connection.
	ServerInside bool
	// Port is the server's port, as the program knows it.
	Port uint16
	// Own and Own6 are the program's addresses: the one that it knows, and the one that its peer knows.
	Own, Own6 netip.Addr
	// PeerAddr and PeerAddr4 are the addresses of the peer: the real one, and the one that the program
	// knows.
	PeerAddr, PeerAddr4 netip.AddrPort
	// Expect lets the peer, a server, connect once to a port on which the program listens. It returns
	// where the peer has to connect to.
	Expect func(port uint16) (netip.AddrPort, error)
	// Published returns the port at the container's IPv6 address by which a rule publishes a port of
	// the program.
	Published func(port uint16) (uint16, bool)
}

// relayedMax is how many connections a container may have relayed at a time. Each takes two
// descriptors of this process, four while it begins.
const relayedMax = 128

// relays are the relayed connections of a container.
type relays struct {
	room chan struct{} // has an entry for each
	work sync.WaitGroup

	mu     sync.Mutex // guards what follows
	closed bool
	sink   *sink
	open   map[interface{ Close() error }]struct{}
	// expected are the ports at which programs wait for a server's connection; marked are these
	// connections, by the address of their marker (expect.go).
	expected map[uint16]int
	marked   map[netip.AddrPort]marked
}

func (r *relays) make() {
	r.room, r.open = make(chan struct{}, relayedMax), map[interface{ Close() error }]struct{}{}
	r.expected, r.marked = map[uint16]int{}, map[netip.AddrPort]marked{}
}

var errRelaysClosed = fmt.Errorf("the container is about to end: %w", os.ErrClosed)

// enter takes room for a connection. It returns false if there is none.
func (r *relays) enter() (leave func(), ok bool) {
	select {
	case r.room <- struct{}{}:
		return func() { <-r.room }, true
	default:
		return nil, false
	}
}

// hold has a file closed when the container ends, until release is called.
func (r *relays) hold(c interface{ Close() error }) (release func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, errRelaysClosed
	}
	r.open[c] = struct{}{}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.open, c)
	}, nil
}

// begin calls fn on a goroutine, for which CloseRelays waits.
func (r *relays) begin(fn func()) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errRelaysClosed
	}
	r.work.Go(fn)
	return nil
}

// CloseRelays ends all relayed connections.
func (e *Engine) CloseRelays() {
	r := &e.relays
	r.mu.Lock()
	r.closed = true
	for c := range r.open {
		c.Close()
	}
	if r.sink != nil {
		unix.Close(r.sink.file)
	}
	r.sink = nil
	r.mu.Unlock()
	r.work.Wait()
}

// isRelayed tells whether connections to a port go by the gateway.
func (e *Engine) isRelayed(port uint16) bool { return e.Gateway != nil && e.Gateway.Serves(port) }

func (e *Engine) report(err error) {
	if err != nil {
		e.Log.Error("relayed connection", "err", err)
	}
}

// carry relays a connection.
func (e *Engine) carry(c Relayed) {
	c.Own = e.Translation.Own
	for _, conn := range []net.Conn{c.Program, c.Peer} {
		release, err := e.relays.hold(conn)
		if err != nil {
			c.Program.Close()
			c.Peer.Close()
			return
		}
		defer release()
	}
	if at, is := c.Peer.LocalAddr().(*net.TCPAddr); is && !c.Own6.IsValid() {
		c.Own6 = at.AddrPort().Addr()
	}
	c.Published = e.published(c.Own6)
	if !c.ServerInside {
		x := expectation{e: e, peer: c.PeerAddr.Addr(), at: c.Own6}
		defer x.end()
		c.Expect = x.open
	}
	e.Gateway.Relay(c)
}

// newSocket makes a host socket of the container.
func (e *Engine) newSocket(kind keeper.Kind) (int, error) {
	k, err := e.host.Maker()
	if err != nil {
		return -1, err
	}
	file, err := k.Socket(kind)
	if err != nil {
		return -1, err
	}
	if err := e.Enforcer.Prove(file); err != nil {
		unix.Close(file)
		return -1, err
	}
	return file, nil
}
