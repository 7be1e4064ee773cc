package vsock

import (
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// add makes a connection; nil if the guest has too many.
func (d *Device) add(k key, s state) *conn {
	if d.count >= connsMax {
		return nil
	}
	c := &conn{key: k, state: s, sock: -1, window: windowSmall}
	if d.wide < wideWindows {
		d.wide++
		c.window = windowWide
	}
	d.count++
	d.conns[k] = c
	d.known.add(k)
	return c
}

// enqueue gives a connection a turn, if it has something for the guest.
func (d *Device) enqueue(c *conn) {
	if !c.queued && c.state != gone && c.wantsTurn() {
		c.queued = true
		d.ready = append(d.ready, c)
	}
}

// dequeue takes a connection out of the lists of those that wait for the guest. They stay as short as
// the table of connections, also if the guest takes no packets.
func (d *Device) dequeue(c *conn) {
	if !c.queued {
		return
	}
	c.queued = false
	is := func(other *conn) bool { return other == c }
	d.ready, d.starved = slices.DeleteFunc(d.ready, is), slices.DeleteFunc(d.starved, is)
}

// opened joins a connection with its socket.
func (d *Device) opened(c *conn, s Socket) {
	d.counts.Begin(c.state == dialing)
	c.state, c.socket, c.sock = open, s, s.File
	d.bySock[c.sock] = c
	if err := d.watch(c.sock, unix.EPOLLIN|unix.EPOLLOUT|unix.EPOLLRDHUP|unix.EPOLLPRI|unix.EPOLLET); err != nil {
		d.reset(c)
		return
	}
	d.enqueue(c)
}

// Dial implements Guest.
func (d *Device) Dial(typ uint16, from, to uint32, s Socket, done func(error)) {
	if !d.post(func() { d.dial(key{to, from, typ}, s, done) }) {
		done(ErrGone)
	}
}

func (d *Device) dial(k key, s Socket, done func(error)) {
	switch {
	case d.isOver():
		done(ErrGone)
		return
	case d.conns[k] != nil:
		done(ErrRefused)
		return
	}
	c := d.add(k, dialing)
	if c == nil {
		done(ErrMany)
		return
	}
	c.socket, c.done, c.until = s, done, time.Now().Add(dialPatience)
	d.timed++
	c.send |= sendRequest
	d.enqueue(c)
}

func (d *Device) isOver() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.over
}

// refuse answers a packet of no connection with a reset, unless it is one.
func (d *Device) refuse(h *header) {
	if h.op != opReset {
		d.replies = append(d.replies, header{
			from: HostCID, to: d.cid, fromPort: h.toPort, toPort: h.fromPort, typ: h.typ, op: opReset,
		})
	}
}

// reset ends a connection, and tells the guest. The peer gets a reset too.
func (d *Device) reset(c *conn) {
	if c.state != gone && c.state != lingering {
		d.refuse(&header{toPort: c.host, fromPort: c.guest, typ: c.typ})
	}
	d.drop(c)
}

// drop ends a connection without a word to the guest. If bytes may be missing, the peer gets a
// reset and not an end.
func (d *Device) drop(c *conn) {
	if c.state == open {
		d.counts.Resets.Add(1)
	}
	if c.typ == Stream && (c.state == open && !c.guestEnded || !c.backlog.empty()) {
		_ = unix.SetsockoptLinger(c.sock, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	d.forget(c)
}

// linger ends a connection that the guest has closed. Its last bytes go to the socket.
func (d *Device) linger(c *conn) {
	d.refuse(&header{toPort: c.host, fromPort: c.guest, typ: c.typ})
	delete(d.conns, c.key)
	c.state, c.until = lingering, time.Now().Add(lingerPatience)
	d.timed++
}

// forget closes a connection's socket, and lets go of it.
func (d *Device) forget(c *conn) {
	if c.state == gone {
		return
	}
	if d.conns[c.key] == c {
		delete(d.conns, c.key)
	}
	if c.state == dialing || c.state == lingering {
		d.timed--
	}
	d.dequeue(c)
	was := c.state
	c.state = gone
	d.count--
	if c.window == windowWide {
		d.wide--
	}
	if was == dialing {
		c.done(ErrRefused) // the socket is the caller's
		return
	}
	if c.sock >= 0 {
		d.counts.Open.Add(-1)
		delete(d.bySock, c.sock)
		d.unwatch(c.sock) // others may have the socket too
		c.socket.close()
	}
	c.backlog = backlog{}
}

// dropAll ends all connections: the guest has begun anew.
func (d *Device) dropAll() {
	d.ready, d.starved, d.replies = nil, nil, nil
	for _, c := range d.conns {
		d.drop(c)
	}
}

// tellReset tells a driver that goes on with a new device that its connections are gone
// (VIRTIO_VSOCK_EVENT_TRANSPORT_RESET, virtio 1.2 section 5.10.6.7).
func (d *Device) tellReset() error {
	q := &d.queues[eventQueue]
	if !d.resumed || !q.running() {
		return nil
	}
	n, err := q.waiting()
	if n == 0 || err != nil {
		return err
	}
	if err := q.peek(d.memory, 0, true, &d.chain); err != nil {
		return err
	}
	const size = 4 // of the event's number, which is 0
	if err := d.chain.split(size, func(part []byte, _ int) { clear(part) }); err != nil {
		return err
	}
	q.put(&d.chain, size)
	q.publish()
	d.resumed = false
	d.keep()
	return nil
}

// expire ends connections that have waited too long.
func (d *Device) expire() {
	if d.timed == 0 {
		return
	}
	now := time.Now()
	if now.Sub(d.expired) < time.Second {
		return
	}
	d.expired = now
	for _, c := range d.conns {
		if c.state == dialing && now.After(c.until) {
			d.reset(c)
		}
	}
	for _, c := range d.bySock {
		if c.state == lingering && now.After(c.until) {
			d.drop(c)
		}
	}
}
