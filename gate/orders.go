package gate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// # Orders
//
// A gate carries out orders in the sequence in which they come, and answers each. A gate that is
// stopped, or that gets no CPU time, answers once it goes on. So
//
//   - no caller waits for an answer longer than orderPatience, and no caller waits while an answer
//     is overdue;
//   - of each kind of order, at most one is under way, and a gate that goes on finds it. The last
//     later order of the kind waits behind it, and is sent when the answer comes. So a gate that
//     answers again gets to the last order, and its queue is never full.

// ErrSilent says that a gate does not answer. The gate carries out its orders when it goes on.
var ErrSilent = errors.New("the gate does not answer; somebody may have stopped it")

// orderPatience limits the wait for an answer on a loaded machine.
const orderPatience = 5 * time.Second

// kind is the kind of an order. A later order of the same kind replaces an earlier one, or is equal
// to it.
type kind struct {
	op   op
	word uint32 // of opSet
}

// order is an order of a supervisor to its gate.
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

// orders are the open orders of one gate. control.mu guards them.
type orders struct {
	tag      uint64
	underWay map[kind]*openOrder
	next     map[kind]*openOrder // waits behind one of its kind
	silent   bool                // an answer is overdue
}

func newOrders() orders {
	return orders{underWay: map[kind]*openOrder{}, next: map[kind]*openOrder{}}
}

// fail ends all waits for answers.
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

// submit sends an order, or puts it behind the one of its kind. It tells whether the gate is
// silent: then the caller does not wait.
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

// send sends an order, without waiting for room. The caller holds mu.
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

// tell sends an order that gets no answer.
func (c *control) tell(o op, value uint32) error { return c.write(encodeOrder(o, 0, 0, value), nil) }

// flag is a word of the board that is set once and stays set.
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
	// A gate that has gone decides nothing any more. A silent gate gets the order before it
	// decides.
	if _, err := c.order(order{op: opSet, word: uint32(w), value: 1}); err == nil {
		f.set.Store(true)
	}
}

// SetServed tells which ports of the container's loopback may lead to the host, by ServedBit of each,
// before Services is set. About others the gate and the shims need not ask. A gate that does not know
// this order, or that has been adopted and was told of no port since, asks about all: so the first
// order has all ports.
func (g *Gate) SetServed(bits uint32) {
	_, _ = g.order(order{op: opSet, word: uint32(served), value: bits})
}

// ServedBit is the bit of a port. Ports share bits.
func ServedBit(port uint16) uint32 { return 1 << (port % 32) }

func (c *control) setRules(image []byte) error {
	_, err := c.order(order{op: opRules, value: uint32(len(image)), image: image})
	return err
}

// GiveMemory gives the gate the memory of the caller of a Request that WantsMemory: a file of
// /proc/TID/mem that was opened for reading and writing while the caller waited. Without it, as when the
// gate's queue is full, the gate asks again.
func (g *Gate) GiveMemory(r Request, memory int) error {
	return g.write(encodeOrder(opMemory, r.ID, uint32(r.Thread), 0), unix.UnixRights(memory))
}

// NamesPeers tells the gate that this supervisor calls GiveName. Without that, as before supervisors of older versions,
// the program has a connection before the supervisor is asked for the name of its peer. It does not wait: until the
// gate knows it, it does the same.
func (g *Gate) NamesPeers() error {
	return g.write(encodeOrder(opSet, 0, uint32(namesPeers), 1), nil)
}

// GiveName tells the gate what the peer of a Request of AcceptedName is called, an IPv4 address. The gate
// then answers the call.
func (g *Gate) GiveName(r Request, name netip.Addr) error {
	b := name.As4()
	return g.write(encodeOrder(opName, r.ID, 0, binary.NativeEndian.Uint32(b[:])), nil)
}

// rulesFile returns a file in memory with an image.
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
