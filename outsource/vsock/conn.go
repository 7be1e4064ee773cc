package vsock

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// key names a connection of the guest.
type key struct {
	guest, host uint32 // ports
	typ         uint16
}

// state is the life of a connection:
//
//	requested  the guest asks, the Handler has not answered  → open, gone
//	dialing    the guest was asked, and has not answered     → open, gone
//	open       bytes go both ways                            → lingering, gone
//	lingering  the guest has closed; its last bytes wait for the socket. The guest may use the
//	           ports again: the connection is in no table    → gone
//	gone       the socket is closed
type state uint8

const (
	requested state = iota
	dialing
	open
	lingering
	gone
)

// Packets without bytes that a connection has for the guest, the first one first.
const (
	sendRequest = 1 << iota
	sendResponse
	sendCredit
	sendEnd
)

// conn is a connection.
type conn struct {
	key
	state  state
	socket Socket
	sock   int // its file, once the connection is open; else -1

	readable, writable bool // as far as epoll has said
	hung               bool // epoll said that there will be an end or an error, or is an urgent byte, at which reads end

	// To the guest. Counters wrap around.
	alloc, taken, sent uint32 // what the guest has room for, has taken, and was sent
	needs              int    // bytes of the next message, if the guest had not room for it
	ended              bool   // the socket has no more bytes for the guest

	// From the guest.
	window, received, forwarded, told uint32 // room, bytes that came, went to the socket, and were told of
	backlog                           backlog
	guestEnded                        bool // no more bytes come

	send   uint8
	queued bool // it is in Device.ready or Device.starved

	done  func(error) // of Dial; nil if the guest asked
	until time.Time   // for dialing and lingering
}

// credit is the number of bytes that the guest has room for.
func (c *conn) credit() int {
	if used := c.sent - c.taken; used < c.alloc {
		return int(c.alloc - used)
	}
	return 0
}

// hears notes what each packet of the guest's says.
func (c *conn) hears(h *header) { c.alloc, c.taken = h.alloc, h.forwarded }

// consumed notes that bytes of the guest's went to the socket, and tells the guest in time.
func (c *conn) consumed(n int) {
	if c.forwarded += uint32(n); c.forwarded-c.told >= c.window/4 {
		c.send |= sendCredit
	}
}

// wantsTurn tells whether the connection has something for the guest.
func (c *conn) wantsTurn() bool {
	return c.send != 0 || c.state == open && c.readable && !c.ended && c.credit() > 0 && c.credit() >= c.needs
}

// backlog are bytes of the guest's that the socket has not taken. For SeqPacket they are messages.
type backlog struct {
	b    []byte
	ends []int // of messages, in b
}

// messagesMax bounds backlog.ends: messages may be empty.
const messagesMax = 4096

var errBacklog = errors.New("too many messages wait")

func (l *backlog) empty() bool { return len(l.b) == 0 && len(l.ends) == 0 }

// add adds bytes. They fit into the window, and so does the memory that they take.
func (l *backlog) add(parts [][]byte, window uint32) {
	size := len(l.b)
	for _, p := range parts {
		size += len(p)
	}
	if size > cap(l.b) {
		b := make([]byte, len(l.b), max(size, min(2*size, int(window))))
		copy(b, l.b)
		l.b = b
	}
	for _, p := range parts {
		l.b = append(l.b, p...)
	}
}

// end ends a message.
func (l *backlog) end() error {
	if len(l.ends) >= messagesMax {
		return errBacklog
	}
	l.ends = append(l.ends, len(l.b))
	return nil
}

// next returns what the next send takes; false if there is nothing.
func (l *backlog) next(typ uint16) ([]byte, bool) {
	if typ == Stream {
		return l.b, len(l.b) > 0
	}
	if len(l.ends) == 0 {
		return nil, false
	}
	return l.b[:l.ends[0]], true
}

// drop forgets the first n bytes, which are a message of SeqPacket.
func (l *backlog) drop(typ uint16, n int) {
	if l.b = l.b[n:]; len(l.b) == 0 {
		l.b = nil // the memory of a connection that has caught up is free
	}
	if typ == Stream {
		return
	}
	l.ends = l.ends[1:]
	for i := range l.ends {
		l.ends[i] -= n
	}
}

// flush gives the socket what waits for it. When the guest has ended, the socket ends.
func (d *Device) flush(c *conn) {
	for c.writable {
		b, some := c.backlog.next(c.typ)
		if !some {
			break
		}
		n, err := unix.SendmsgN(c.sock, b, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOBUFS):
			c.writable = false
		case errors.Is(err, unix.EINTR):
		case err != nil && c.typ == SeqPacket && !fatal(err):
			c.backlog.drop(c.typ, len(b)) // a datagram is lost
			c.consumed(len(b))
		case err != nil:
			d.reset(c)
			return
		default:
			c.backlog.drop(c.typ, n)
			c.consumed(n)
		}
	}
	d.endSocket(c)
}

// endSocket ends what the guest sends, once all of it is with the socket.
func (d *Device) endSocket(c *conn) {
	if !c.guestEnded || !c.backlog.empty() {
		return
	}
	if c.state == lingering {
		d.forget(c)
		return
	}
	_ = unix.Shutdown(c.sock, unix.SHUT_WR)
}

// fatal tells whether an error is the end of a socket. A datagram may be too long, or refused.
func fatal(err error) bool {
	return !errors.Is(err, unix.EMSGSIZE) && !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.EHOSTUNREACH) &&
		!errors.Is(err, unix.ENETUNREACH) && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ENOBUFS)
}
