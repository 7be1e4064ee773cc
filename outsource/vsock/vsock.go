// Package vsock has the host's ends of vsock connections of guests: a vhost-user-vsock device for
// VMMs that share the guest's memory (QEMU, User-Mode Linux). It joins each connection with a socket
// of the host, and moves the bytes itself.
//
// It knows no meaning of ports, and makes no sockets. It needs no privileges beyond those to open
// the VMM's socket; Linux 5.4.
//
// # Theory of operation
//
// A device has one thread, which runs loop in device.go. All state of the device belongs to it.
// Other goroutines hand it functions by post. It waits in epoll for four kinds of files: the VMM's
// socket (vhostuser.go), kicks of the rings, sockets of the host, and an eventfd for post.
//
// The guest's transmit ring brings packets (tx.go): a header, and bytes that go from the guest's
// buffer to the socket by one sendmsg(2). What the socket does not take waits in the connection's
// backlog. It cannot be longer than the window that the guest was told (buf_alloc).
//
// Bytes for the guest need buffers of its receive ring and its credit (rx.go). Connections that
// have something for the guest are in a list, and each takes up to batchMax buffers in turn. A
// socket is in epoll once, edge-triggered: conn.readable and conn.writable remember what epoll said
// until a call says EAGAIN.
//
// The guest is an enemy: see memory.go and queue.go. An error of those ends the device.
package vsock

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Types of connections (virtio 1.2 section 5.10.6).
const (
	Stream    = 1
	SeqPacket = 2
)

// Guest has the connections of one guest.
type Guest interface {
	// Dial connects from a port of the host to a port of the guest, and joins the connection with
	// a socket. It does not wait: done is called once, and must not wait either. Without an error,
	// the guest has accepted, and the socket is the Guest's to close; with one it stays the
	// caller's. ErrRefused says that nobody listens there, or that the listener's queue is full.
	Dial(typ uint16, from, to uint32, s Socket, done func(error))
	// Close ends all connections.
	Close() error
}

// Handler gets connections that a guest opens. Request must not wait.
type Handler interface {
	Request(*Request)
}

// Socket is a socket that is joined with a connection. The Guest closes it.
type Socket struct {
	File int
	// Named is called with the host's port that the guest sees, if that is another than Dial says. It comes
	// before Dial's done, and must not wait. It may be nil.
	Named func(port uint32)
	// Ended is called when the connection has ended and the file is closed. It must not wait. It
	// may be nil.
	Ended func()
}

// Request is a connection that waits to be accepted. Exactly one of its methods is called, once, by
// any goroutine.
type Request struct {
	Type     uint16
	From, To uint32 // the guest's port, and the host's

	accept func(Socket)
	refuse func()
}

// NewRequest makes a Request for another Guest than a Device: accept and refuse are called as its methods
// are.
func NewRequest(typ uint16, from, to uint32, accept func(Socket), refuse func()) *Request {
	return &Request{Type: typ, From: from, To: to, accept: accept, refuse: refuse}
}

// Accept accepts the connection and joins it with a socket, which is the Guest's from then on, also
// if the connection has ended meanwhile. For SeqPacket, the socket keeps the boundaries of messages.
func (r *Request) Accept(s Socket) { r.accept(s) }

// Refuse resets the connection.
func (r *Request) Refuse() { r.refuse() }

// Errors of Dial.
var (
	ErrRefused = errors.New("the guest does not accept the connection")
	ErrMany    = errors.New("the guest has too many connections")
	ErrGone    = errors.New("the guest is gone")
)

func (s Socket) close() {
	unix.Close(s.File)
	if s.Ended != nil {
		s.Ended()
	}
}

// ErrGuest says that a guest or its VMM has broken the rules of virtio or vhost-user.
var ErrGuest = errors.New("the guest breaks the device's rules")
