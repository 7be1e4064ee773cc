package vsock

import (
	"errors"

	"golang.org/x/sys/unix"
)

// receive gives the guest what there is for it: answers first, then each connection in turn. more
// says that there is more, and that the guest has buffers.
func (d *Device) receive() (more bool, err error) {
	q := &d.queues[rxQueue]
	if !q.running() {
		return false, nil
	}
	defer d.publish(q)
	for range turnsMax {
		if len(d.replies) == 0 && len(d.ready) == 0 {
			return false, nil
		}
		n, err := d.buffers(q)
		if n == 0 || err != nil {
			return false, err
		}
		if len(d.replies) > 0 {
			err = d.emit(q, &d.replies[0])
			d.toldOf = append(d.toldOf, key{d.replies[0].toPort, d.replies[0].fromPort, d.replies[0].typ})
			d.replies = d.replies[1:]
		} else {
			err = d.turn(q, n)
		}
		if err != nil {
			return false, err
		}
		if q.filled-q.told >= chainsMax {
			d.publish(q) // the guest takes them while the next ones are filled
		}
	}
	return true, nil
}

// buffers returns the number of the guest's buffers. If there are none, the guest is asked to say
// when there are.
func (d *Device) buffers(q *queue) (int, error) {
	n, err := q.waiting()
	if n > 0 || err != nil {
		q.hush(true)
		return n, err
	}
	d.publish(q)
	q.hush(false)
	return q.waiting()
}

// publish shows the guest what was put into its receive ring. Then the guest knows which connections have ended.
func (d *Device) publish(q *queue) {
	q.publish()
	for _, k := range d.toldOf {
		if d.conns[k] == nil { // else the ports are another connection's by now
			d.known.remove(k)
		}
	}
	d.toldOf = d.toldOf[:0]
}

// turn lets the next connection use some of n buffers.
func (d *Device) turn(q *queue, n int) error {
	c := d.ready[0]
	d.ready = d.ready[1:]
	c.queued = false
	var err error
	switch {
	case c.state == gone || c.state == lingering:
		return nil
	case c.send != 0:
		err = d.emit(q, d.control(c))
	case c.typ == SeqPacket && c.wantsTurn():
		err = d.deliverMessage(q, c, n)
	case c.wantsTurn():
		err = d.deliver(q, c, min(n, len(d.chains)))
	}
	d.enqueue(c)
	return err
}

// control returns the next packet without bytes.
func (d *Device) control(c *conn) *header {
	h := d.header(c, 0)
	switch {
	case c.send&sendRequest != 0:
		h.op = opRequest
		c.send &^= sendRequest
	case c.send&sendResponse != 0:
		h.op = opResponse
		c.send &^= sendResponse
	case c.send&sendCredit != 0:
		h.op = opCreditUpdate
	default:
		h.op, h.flags = opShutdown, noSend
		c.send &^= sendEnd
	}
	c.send &^= sendCredit // each packet has it
	return h
}

// header returns the header of a packet to the guest.
func (d *Device) header(c *conn, length int) *header {
	c.told = c.forwarded
	return &header{
		from: HostCID, to: d.cid, fromPort: c.host, toPort: c.guest, typ: c.typ, op: opData, length: uint32(length),
		alloc: c.window, forwarded: c.forwarded,
	}
}

// emit gives the guest a packet without bytes.
func (d *Device) emit(q *queue, h *header) error {
	if err := q.peek(d.memory, 0, true, &d.chain); err != nil {
		return err
	}
	return d.fill(q, &d.chain, h)
}

// fill writes a header into a chain, behind which bytes are already, and gives it to the guest.
func (d *Device) fill(q *queue, c *chain, h *header) error {
	raw := h.bytes()
	if err := c.split(headerSize, func(part []byte, off int) { copy(part, raw[off:]) }); err != nil {
		return err
	}
	q.put(c, headerSize+int(h.length))
	return nil
}

// deliver reads from the socket into up to n of the guest's buffers at once.
func (d *Device) deliver(q *queue, c *conn, n int) error {
	parts, sizes, err := d.room(q, n, c.credit())
	if err != nil {
		return err
	}
	got, err := d.transfer(unix.SYS_RECVMSG, c.sock, parts, unix.MSG_DONTWAIT)
	switch {
	case errors.Is(err, unix.EAGAIN):
		c.readable = false
		return nil
	case errors.Is(err, unix.EINTR):
		return nil
	case err != nil:
		d.reset(c)
		return nil
	case got == 0:
		c.ended = true
		c.send |= sendEnd
		return nil
	}
	total := 0
	for _, size := range sizes {
		total += size
	}
	if got < total && !c.hung {
		c.readable = false // epoll says when there is more
	}
	return d.fillAll(q, c, sizes, got, 0)
}

// deliverMessage gives the guest one message, if there is room for all of it: n buffers, and credit.
// A message that the guest never has room for is dropped, as a datagram.
func (d *Device) deliverMessage(q *queue, c *conn, n int) error {
	size, err := d.transfer(unix.SYS_RECVMSG, c.sock, nil, unix.MSG_DONTWAIT|unix.MSG_PEEK|unix.MSG_TRUNC)
	switch {
	case err != nil:
		return d.messageError(c, err)
	case size == 0:
		c.ended = true
		c.send |= sendEnd
		return nil
	case size > c.credit() && size <= int(c.alloc):
		c.needs = size
		return nil
	}
	c.needs = 0
	parts, sizes, err := d.room(q, min(n, len(d.chains)), size)
	if err != nil {
		return err
	}
	total := 0
	for _, s := range sizes {
		total += s
	}
	if total < size && size <= int(c.alloc) && n < min(len(d.chains), int(q.num)) {
		d.starved = append(d.starved, c)
		c.queued = true
		q.hush(false)
		return nil
	}
	got, err := d.transfer(unix.SYS_RECVMSG, c.sock, parts, unix.MSG_DONTWAIT)
	if err != nil || got < size {
		return d.messageError(c, err)
	}
	return d.fillAll(q, c, sizes, got, endMsg)
}

func (d *Device) messageError(c *conn, err error) error {
	switch {
	case errors.Is(err, unix.EAGAIN):
		c.readable = false
	case err != nil && !errors.Is(err, unix.EINTR) && fatal(err):
		d.reset(c)
	}
	return nil
}

// room returns where up to limit bytes may be written, in the next n buffers, and the bytes that
// each has. The buffers are in d.chains.
func (d *Device) room(q *queue, n, limit int) (parts [][]byte, sizes []int, err error) {
	d.parts, d.sizes = d.parts[:0], d.sizes[:0]
	for i := 0; i < n && limit > 0; i++ {
		c := &d.chains[i]
		if err := q.peek(d.memory, i, true, c); err != nil {
			return nil, nil, err
		}
		if c.size <= headerSize {
			return nil, nil, errLength
		}
		size := min(limit, c.size-headerSize)
		skip, left := headerSize, size
		for _, p := range c.parts {
			k := min(skip, len(p))
			skip -= k
			p = p[k:]
			p = p[:min(left, len(p))]
			left -= len(p)
			if len(p) > 0 {
				d.parts = append(d.parts, p)
			}
		}
		d.sizes = append(d.sizes, size)
		limit -= size
	}
	return d.parts, d.sizes, nil
}

// fillAll writes the headers of got bytes that are in d.chains.
func (d *Device) fillAll(q *queue, c *conn, sizes []int, got int, lastFlags uint32) error {
	c.sent += uint32(got)
	d.counts.ToGuest.Add(uint64(got))
	for i := range sizes {
		k := min(got, sizes[i])
		got -= k
		h := d.header(c, k)
		if got == 0 {
			h.flags = lastFlags
		}
		if err := d.fill(q, &d.chains[i], h); err != nil {
			return err
		}
		if got == 0 {
			break
		}
	}
	return nil
}
