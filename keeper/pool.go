package keeper

import (
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// Theory of operation
//
// Each kind of socket has a pool. A pool starts with a batch of two. When half a batch or less is
// left, it asks for the next one, twice as large up to batchMax. The caller that notices this
// writes the request and does not wait. So a program that makes one socket costs two, and one that
// makes thousands finds them there. A pool that is no longer used shrinks by half every tidyEvery,
// down to one socket, because idle sockets are descriptors of the supervisor, which has many
// containers.
//
// Invariants, with mu held:
//   - waiters are there only while nothing is idle and a batch is asked for
//     (queued or under way);
//   - a pool is in queue at most once, and not while its batch is under way;
//   - a batch is under way if queue is not empty.

// Kind is what a program asks of socket(2). Type may carry SOCK_NONBLOCK;
// SOCK_CLOEXEC is ignored, since it is a property of descriptors, and ours
// always have it.
type Kind struct{ Family, Type, Protocol int }

const tidyEvery = time.Second

// pool holds sockets of one kind. The client's mu guards it.
type pool struct {
	kind    Kind
	idle    []int // made and unused; the last is taken first
	size    int   // of the latest batch
	used    int   // sockets taken since the last shrink
	asked   bool  // a batch is in queue or under way
	ahead   bool  // whether to make sockets before they are asked for
	waiters []chan handed
}

// batch is a request for sockets that has not been answered.
type batch struct {
	pool *pool
	tag  uint32
}

// handed is what a waiter gets: a socket or an error.
type handed struct {
	fd  int
	err error
}

// Socket returns a socket of a kind. The caller closes it. If the kernel refuses, the error is a
// *SocketError. If the process has no room for another descriptor, the error is ErrFiles.
func (c *client) Socket(kind Kind) (int, error) {
	kind.Type &^= unix.SOCK_CLOEXEC
	c.mu.Lock()
	p := c.pools[kind]
	if p == nil || len(p.idle) == 0 {
		return c.wait(kind)
	}
	last := len(p.idle) - 1
	fd := p.idle[last]
	p.idle = p.idle[:last]
	p.used++
	if p.asked || last > p.size/2 {
		c.mu.Unlock()
		return fd, nil
	}
	c.ask(p)
	r, ok := c.next()
	c.mu.Unlock()
	if ok {
		c.request(r)
	}
	return fd, nil
}

// wait asks for a socket and waits for it. mu is held, and is not on return.
func (c *client) wait(kind Kind) (int, error) {
	if err := c.gone; err != nil {
		c.mu.Unlock()
		return -1, err
	}
	if !fitsInt32(kind.Family) || !fitsInt32(kind.Type) || !fitsInt32(kind.Protocol) {
		c.mu.Unlock()
		return -1, fmt.Errorf("make socket: arguments %v are not three ints of C", kind)
	}
	p := c.pools[kind]
	if p == nil {
		p = newPool(kind)
		c.pools[kind] = p
	}
	ch := make(chan handed, 1)
	p.waiters = append(p.waiters, ch)
	if !p.asked {
		c.ask(p)
	}
	r, ok := c.next()
	c.mu.Unlock()
	if ok {
		c.request(r)
	}
	late := time.NewTimer(answerWait)
	defer late.Stop()
	select {
	case h := <-ch:
		return h.fd, h.err
	case <-late.C:
		c.fail(errSilent) // which answers ch, if nothing has
		h := <-ch
		return h.fd, h.err
	}
}

func fitsInt32(n int) bool { return n >= math.MinInt32 && n <= math.MaxInt32 }

func newPool(kind Kind) *pool {
	p := &pool{kind: kind, size: 1}
	switch kind.Type &^ unix.SOCK_NONBLOCK {
	case unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_SEQPACKET:
		// Raw and packet sockets receive as soon as they exist. A socket that was made ahead would
		// have packets from before the program's call.
		p.ahead = kind.Family == unix.AF_INET || kind.Family == unix.AF_INET6 || kind.Family == unix.AF_UNIX
	}
	if p.ahead {
		p.idle = make([]int, 0, batchMax+batchMax/2)
	}
	return p
}

// ask puts a pool in the queue for its next batch. The caller holds mu.
func (c *client) ask(p *pool) {
	p.asked = true
	if p.ahead {
		p.size = min(2*p.size, batchMax)
	}
	c.queue = append(c.queue, p)
}

// next takes the request that should be written now, if any. Pools with waiters go first. The
// caller holds mu.
func (c *client) next() (request, bool) {
	if c.batch != nil || len(c.queue) == 0 {
		return request{}, false
	}
	at := 0
	for i, p := range c.queue {
		if len(p.waiters) > 0 {
			at = i
			break
		}
	}
	p := c.queue[at]
	c.queue = append(c.queue[:at], c.queue[at+1:]...)
	c.batch = &batch{pool: p, tag: c.nextTag()}
	if p.ahead && !c.timed {
		c.timed = true
		c.tidy.Reset(tidyEvery)
	}
	count := min(len(p.waiters), batchMax)
	if p.ahead {
		p.size = max(p.size, count)
		count = p.size
	}
	return request{op: opSockets, tag: c.batch.tag, kind: p.kind, count: uint32(count)}, true
}

// request writes a request for sockets. If it cannot be sent, its waiters get
// the error, and the next pool has its turn.
func (c *client) request(r request) {
	for {
		err := c.send(r, nil)
		if err == nil {
			return
		}
		c.mu.Lock()
		if c.gone != nil || c.batch == nil || c.batch.tag != r.tag {
			c.mu.Unlock()
			return
		}
		c.settle(nil, err)
		var ok bool
		r, ok = c.next()
		c.mu.Unlock()
		if !ok {
			return
		}
	}
}

// complete handles a received batch. It owns fds unless it returns an error.
func (c *client) complete(r reply, fds []int) error {
	c.mu.Lock()
	if c.gone != nil {
		c.mu.Unlock()
		closeAll(fds)
		return nil
	}
	if c.batch == nil || c.batch.tag != r.tag {
		c.mu.Unlock()
		return fmt.Errorf("%w: sockets nobody asked for", errProtocol)
	}
	var err error
	switch {
	case len(fds) < r.count:
		fds, err = c.economize(fds)
	case r.status == statusRefused:
		err = &SocketError{r.errno}
	case r.status == statusFault:
		err = fmt.Errorf("keeper cannot hand sockets over: %w", r.errno)
	}
	c.settle(fds, err)
	next, ok := c.next()
	c.mu.Unlock()
	if ok {
		go c.request(next) // read must not wait for a write, see client
	}
	return nil
}

// settle ends the batch under way: fds go to the waiters and then to the pool. Waiters without a
// socket get err. If there is no error, there were more waiters than fit in a batch, and they wait
// for the next. The caller holds mu.
func (c *client) settle(fds []int, err error) {
	p := c.batch.pool
	c.batch = nil
	p.asked = false
	served := min(len(fds), len(p.waiters))
	for i, w := range p.waiters[:served] {
		w <- handed{fds[i], nil}
	}
	p.waiters = append(p.waiters[:0], p.waiters[served:]...)
	p.idle = append(p.idle, fds[served:]...)
	p.used += served
	if err != nil {
		for _, w := range p.waiters {
			w <- handed{-1, err}
		}
		p.waiters = nil
		p.size = 1
		if len(p.idle) == 0 {
			// Programs may ask for any invalid kind, so the pool is not kept.
			delete(c.pools, p.kind)
		}
		return
	}
	switch {
	case len(p.waiters) > 0:
		c.ask(p)
	case !p.ahead:
		delete(c.pools, p.kind)
	case served > p.size/2 && len(p.idle) <= p.size/2:
		c.ask(p) // more than one wants them: do not wait for the next
	}
}

// economize closes every descriptor for which nobody waits, because this process has run out of
// descriptors. It returns the rest of an incomplete batch, and ErrFiles if another request would
// gain nothing. The caller holds mu.
func (c *client) economize(fds []int) ([]int, error) {
	freed := false
	for _, p := range c.pools {
		freed = freed || len(p.idle) > 0
		closeAll(p.idle)
		p.idle = p.idle[:0]
		p.size = 1
	}
	if n := len(c.batch.pool.waiters); len(fds) > n {
		closeAll(fds[n:])
		fds = fds[:n]
	}
	if freed {
		return fds, nil
	}
	return fds, fmt.Errorf("take sockets from keeper: %w", ErrFiles)
}

// shrink runs every tidyEvery while there is anything to shrink.
func (c *client) shrink() {
	var excess []int
	c.mu.Lock()
	c.timed = false
	if c.gone != nil {
		c.mu.Unlock()
		return
	}
	for _, p := range c.pools {
		if p.used < max(p.size/2, 1) {
			p.size = max(p.size/2, 1)
			if most := p.size + p.size/2; len(p.idle) > most {
				excess = append(excess, p.idle[most:]...)
				p.idle = p.idle[:most]
			}
		}
		p.used = 0
		c.timed = c.timed || p.size > 1 || len(p.idle) > 1
	}
	if c.timed {
		c.tidy.Reset(tidyEvery)
	}
	c.mu.Unlock()
	closeAll(excess)
}
