package gate

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// # Orders
//
// A gate carries out orders in the order in which they come, and answers each. One that somebody
// has stopped, or that gets no CPU time, answers none; it does so once it goes on. So
//
//   - nobody waits for an answer for longer than orderPatience, and nobody at all while an
//     answer is overdue;
//   - of each kind of order at most one is under way, which a gate that goes on finds; behind that
//     the last one of its kind waits, which is sent with the answer. So a gate that answers again
//     gets to what was ordered last, and its queue is never full.

// ErrSilent says that a gate does not answer. What it was ordered it carries out when it goes on.
var ErrSilent = errors.New("the gate does not answer; somebody may have stopped it")

// orderPatience is for an answer, on a loaded machine.
const orderPatience = 5 * time.Second

// kind of an order: a later one of the same kind makes an earlier one void, or is the same.
type kind struct {
	op   op
	word uint32 // of opSet
}

// order is what a supervisor wants of its gate.
type order struct {
	op          op
	word, value uint32
	image       []byte // of opRules, in a file that comes with it; nil: there is none
}

func (r order) kind() kind {
	if r.op == opSet {
		return kind{r.op, r.word}
	}
	return kind{op: r.op}
}

// openOrder is an order that has not been answered.
type openOrder struct {
	tag     uint64
	order   order
	waiters []chan answer
}

func (p *openOrder) end(a answer) {
	for _, w := range p.waiters {
		w <- a // has room for it
	}
}

// orders are those of one gate. control.mu guards them.
type orders struct {
	tag      uint64
	underWay map[kind]*openOrder
	next     map[kind]*openOrder // behind one of its kind
	silent   bool                // an answer is overdue
}

func newOrders() orders {
	return orders{underWay: map[kind]*openOrder{}, next: map[kind]*openOrder{}}
}

// fail releases all who wait.
func (o *orders) fail(err error) {
	for _, list := range []map[kind]*openOrder{o.underWay, o.next} {
		for _, p := range list {
			p.end(answer{err: err})
		}
		clear(list)
	}
}

// order sends an order and waits until it is carried out. If that takes too long it returns
// ErrSilent, and the order is carried out later.
func (c *control) order(r order) (answer, error) {
	waiter := make(chan answer, 1)
	silent, err := c.submit(r, waiter)
	if err != nil {
		return answer{}, err
	}
	if silent {
		return answer{}, ErrSilent
	}
	late := time.NewTimer(orderPatience)
	defer late.Stop()
	select {
	case a := <-waiter:
		return a, a.err
	case <-late.C:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.orders.silent = true
		return answer{}, ErrSilent
	}
}

// submit sends an order, or puts it behind the one of its kind. It tells whether the gate is silent:
// then nobody waits.
func (c *control) submit(r order, waiter chan answer) (silent bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone != nil {
		return false, c.gone
	}
	p := &openOrder{order: r}
	if !c.orders.silent {
		p.waiters = append(p.waiters, waiter)
	}
	if c.orders.underWay[r.kind()] == nil {
		return c.orders.silent, c.send(p)
	}
	if before := c.orders.next[r.kind()]; before != nil {
		p.waiters = append(p.waiters, before.waiters...)
	}
	c.orders.next[r.kind()] = p
	return c.orders.silent, nil
}

// answered ends an order, and sends the next of its kind.
func (c *control) answered(a answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.orders.silent = false
	for k, p := range c.orders.underWay {
		if p.tag != a.tag {
			continue
		}
		p.end(a)
		delete(c.orders.underWay, k)
		if next := c.orders.next[k]; next != nil {
			delete(c.orders.next, k)
			if err := c.send(next); err != nil {
				next.end(answer{err: err})
			}
		}
		return
	}
}

// send sends an order, without waiting for room. With mu.
func (c *control) send(p *openOrder) error {
	c.orders.tag++
	p.tag = c.orders.tag
	r := p.order
	var rights []byte
	if r.image != nil {
		f, err := rulesFile(r.image)
		if err != nil {
			return err
		}
		defer f.Close()
		rights = unix.UnixRights(int(f.Fd()))
	}
	if err := c.write(encodeOrder(r.op, p.tag, r.word, r.value), rights); err != nil {
		return err
	}
	c.orders.underWay[r.kind()] = p
	return nil
}

// write writes a message if there is room for it.
func (c *control) write(b, rights []byte) error {
	raw, err := c.conn.SyscallConn()
	if err != nil {
		return err
	}
	werr := raw.Write(func(fd uintptr) bool {
		err = unix.Sendmsg(int(fd), b, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		return true
	})
	if errors.Is(err, unix.EAGAIN) {
		return fmt.Errorf("%w: its queue is full", ErrSilent)
	}
	return errors.Join(werr, err)
}

// tell sends an order that nobody answers.
func (c *control) tell(o op, value uint32) error { return c.write(encodeOrder(o, 0, 0, value), nil) }

// flag is a word of the board that is set once and for good.
type flag struct {
	mu  sync.Mutex // held while it is being set
	set atomic.Bool
}

// set sets a word of the board, once.
func (c *control) set(w Word) {
	f := &c.flags[w]
	if f.set.Load() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.set.Load() {
		return
	}
	// A gate that is gone decides nothing any more; one that is silent will know before it does.
	if _, err := c.order(order{op: opSet, word: uint32(w), value: 1}); err == nil {
		f.set.Store(true)
	}
}

func (c *control) setRules(image []byte) error {
	_, err := c.order(order{op: opRules, value: uint32(len(image)), image: image})
	return err
}

// rulesFile is a file in memory.
func rulesFile(image []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("rules", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "rules")
	if _, err := f.Write(image); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
