package vsock

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// transmit handles what the guest sends, a batch at a time. more says that there is more.
//
// The driver frees its memory when it is told that a packet was sent, and nothing waits for that but a
// driver whose ring is full. An interrupt for each packet would double those of a round trip. So the
// driver is told when a quarter of its descriptors are used, and else a little later (tellSent).
//
// A packet may need an answer, which needs a buffer of the guest's. So a guest that takes no answers
// is not heard (repliesMax).
func (d *Device) transmit() (more bool, err error) {
	q := &d.queues[txQueue]
	if !q.running() {
		return false, nil
	}
	n, err := q.waiting()
	if err != nil {
		return false, err
	}
	batch := min(n, txBatch)
	for i := range batch {
		if len(d.replies) >= repliesMax {
			n, batch = i, i
			break
		}
		if err := q.peek(d.memory, 0, false, &d.chain); err != nil {
			return false, err
		}
		if err := d.packet(&d.chain); err != nil {
			return false, err
		}
		q.put(&d.chain, 0)
	}
	if batch > 0 {
		q.show()
	}
	if q.held >= int(q.num)/4 {
		q.interrupt()
	}
	return n > batch, nil
}

// tellSent tells the driver which packets were sent, when the thread has had nothing to do for a
// millisecond, or has been busy with other things for some turns.
func (d *Device) tellSent(idle bool) {
	q := &d.queues[txQueue]
	if !q.running() || !q.isOwed() {
		d.owed = 0
		return
	}
	if d.owed++; idle || d.owed > owedMax {
		q.interrupt()
		d.owed = 0
	}
}

// packet handles one packet of the guest's.
func (d *Device) packet(c *chain) error {
	var raw [headerSize]byte
	if err := c.split(headerSize, func(part []byte, off int) { copy(raw[off:], part) }); err != nil {
		return err
	}
	h := parseHeader(&raw)
	if uint64(h.length) > uint64(c.size) {
		return errLength
	}
	c.truncate(int(h.length))
	if h.from != d.cid || h.to != HostCID || h.typ != Stream && h.typ != SeqPacket {
		d.refuse(&h)
		return nil
	}
	known := d.conns[key{h.fromPort, h.toPort, h.typ}]
	switch {
	case h.op == opRequest:
		if known != nil {
			d.drop(known) // the guest has forgotten it
		}
		d.request(&h)
	case known == nil:
		d.refuse(&h)
	default:
		known.hears(&h)
		d.hear(known, &h, c)
		d.enqueue(known)
	}
	return nil
}

var errLength = fmt.Errorf("%w: a packet is longer than its buffers", ErrGuest)

// request asks the Handler about a connection.
func (d *Device) request(h *header) {
	c := d.add(key{h.fromPort, h.toPort, h.typ}, requested)
	if c == nil {
		d.refuse(h)
		return
	}
	c.hears(h)
	d.handler.Request(&Request{
		Type: h.typ, From: h.fromPort, To: h.toPort,
		accept: func(s Socket) {
			if !d.post(func() { d.accept(c, s) }) {
				s.close()
			}
		},
		refuse: func() {
			d.post(func() {
				if c.state == requested {
					d.reset(c)
				}
			})
		},
	})
}

func (d *Device) accept(c *conn, s Socket) {
	if c.state != requested {
		s.close()
		return
	}
	c.send |= sendResponse
	d.opened(c, s)
}

// hear handles a packet of a connection.
func (d *Device) hear(c *conn, h *header, payload *chain) {
	switch h.op {
	case opResponse:
		if c.state != dialing {
			d.reset(c)
			return
		}
		done := c.done
		c.done = nil
		d.timed--
		d.opened(c, c.socket)
		done(nil)
	case opReset:
		d.drop(c)
		d.known.remove(c.key)
	case opShutdown:
		d.shutdown(c, h.flags)
	case opData:
		if c.state != open || c.guestEnded || !d.take(c, h, payload) {
			d.reset(c)
		}
	case opCreditRequest:
		c.send |= sendCredit
	case opCreditUpdate:
	default:
		d.reset(c)
	}
}

// shutdown ends one direction, or both.
func (d *Device) shutdown(c *conn, flags uint32) {
	if c.state != open {
		d.reset(c)
		return
	}
	if flags&noSend != 0 {
		c.guestEnded = true
	}
	if flags&noReceive != 0 && !c.ended {
		c.ended = true
		_ = unix.Shutdown(c.sock, unix.SHUT_RD)
	}
	if flags&(noSend|noReceive) == noSend|noReceive {
		d.linger(c)
	}
	d.flush(c)
}

// take takes bytes of the guest's; false if the connection has to end. The guest may send no more
// than its window has left.
func (d *Device) take(c *conn, h *header, payload *chain) bool {
	if uint64(c.received-c.forwarded)+uint64(h.length) > uint64(c.window) {
		return false
	}
	c.received += h.length
	d.counts.FromGuest.Add(uint64(h.length))
	if c.typ == SeqPacket {
		return d.takeMessage(c, payload, h.flags&endMsg != 0)
	}
	rest := payload.parts
	if c.backlog.empty() {
		for c.writable && len(rest) > 0 {
			n, err := d.sendmsg(c.sock, rest)
			switch {
			case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOBUFS):
				c.writable = false
			case errors.Is(err, unix.EINTR):
			case err != nil:
				return false
			}
			c.consumed(n)
			rest = behind(rest, n)
		}
	}
	c.backlog.add(rest, c.window)
	return true
}

// takeMessage takes a part of a message. A message in one packet goes to the socket from the guest's
// buffer.
func (d *Device) takeMessage(c *conn, payload *chain, last bool) bool {
	size := payload.total()
	if last && c.writable && c.backlog.empty() {
		_, err := d.sendmsg(c.sock, payload.parts)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			c.consumed(size)
			return err == nil || !fatal(err)
		}
		c.writable = !errors.Is(err, unix.EAGAIN)
	}
	c.backlog.add(payload.parts, c.window)
	if !last {
		return true
	}
	if err := c.backlog.end(); err != nil {
		return false
	}
	d.flush(c)
	return c.state == open
}

// total is the number of bytes of all parts.
func (c *chain) total() (n int) {
	for _, p := range c.parts {
		n += len(p)
	}
	return n
}

// behind returns what is behind the first n bytes.
func behind(parts [][]byte, n int) [][]byte {
	for len(parts) > 0 && n >= len(parts[0]) {
		n -= len(parts[0])
		parts = parts[1:]
	}
	if n > 0 {
		parts[0] = parts[0][n:]
	}
	return parts
}

// sendmsg sends parts, which are the guest's memory. The kernel copies them, once.
func (d *Device) sendmsg(sock int, parts [][]byte) (int, error) {
	return d.transfer(unix.SYS_SENDMSG, sock, parts, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

// transfer calls sendmsg(2) or recvmsg(2). The guest's memory may be slow, so Go's runtime has to
// know that the call may wait.
func (d *Device) transfer(call uintptr, sock int, parts [][]byte, flags int) (int, error) {
	d.iov = d.iov[:0]
	for _, p := range parts {
		v := unix.Iovec{Base: unsafe.SliceData(p)}
		v.SetLen(len(p))
		d.iov = append(d.iov, v)
	}
	msg := unix.Msghdr{Iov: unsafe.SliceData(d.iov)}
	msg.SetIovlen(len(d.iov))
	n, _, errno := unix.Syscall(call, uintptr(sock), uintptr(unsafe.Pointer(&msg)), uintptr(flags))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
