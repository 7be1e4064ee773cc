package gate

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/watch"
)

// reportsMax bounds the calls that the gate has answered and that nobody has yet
// taken notice of.
const reportsMax = 1 << 14

// asksRoom is for how many Asks there is room at least, before those are forgotten whose
// callers wait no more. The gate bounds those that wait, but callers that are interrupted
// come again, each time as another.
const asksRoom = 1 << 12

// messagesAtOnce are read before anything else has its turn, to stop reading too.
const messagesAtOnce = 64

// control is a supervisor's end of a gate's control socket. What comes is read at once, so
// that an order is answered also while nobody takes an Ask. It takes no goroutine
// until something comes.
type control struct {
	conn  *net.UnixConn
	watch *watch.Watch          // nil before it is read
	read  chan struct{}         // closed when nothing is read any more,
	once  sync.Once             // by this
	bye   atomic.Bool           // the gate has ended because its container has
	last  atomic.Pointer[Stats] // what a gate had counted when it ended so

	mu      sync.Mutex // guards what follows
	take    func(Ask)
	waits   func(id uint64) bool // nil before take is there
	ended   func(error)
	handing bool // a goroutine hands on asks, or has handed on the end
	asks    []Ask
	room    int   // for so many asks, before some are forgotten
	end     error // why no Ask comes any more
	gone    error // why no answer comes any more
	tag     uint64
	orders  map[uint64]chan answer

	flags [words]flag
}

// flag is a word of the board that is set once and for good.
type flag struct {
	mu  sync.Mutex // held while it is being set
	set atomic.Bool
}

func newControl(conn *net.UnixConn) *control {
	return &control{conn: conn, read: make(chan struct{}), orders: map[uint64]chan answer{}}
}

// start reads from now on, until the gate or this end is closed.
func (c *control) start() {
	raw, err := c.conn.SyscallConn()
	if err == nil {
		c.watch, err = watch.Start(c.conn, func() bool { return c.readAll(raw) })
	}
	if err != nil {
		c.over(err)
	}
}

// readAll reads what there is, and tells whether more may come.
func (c *control) readAll(raw syscall.RawConn) bool {
	var buf [messageMax + 1]byte
	for range messagesAtOnce {
		n := 0
		var err error
		if rerr := raw.Read(func(fd uintptr) bool {
			n, _, err = unix.Recvfrom(int(fd), buf[:], unix.MSG_DONTWAIT)
			return true
		}); rerr != nil {
			err = rerr
		}
		switch {
		case errors.Is(err, unix.EAGAIN):
			return true
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ECONNRESET):
			// The latter says that the gate ended before it had read all that we sent,
			// and comes before its last words.
			continue
		case err == nil && n == 0:
			err = io.EOF
		case err == nil:
			err = c.receive(buf[:n])
		}
		if err != nil {
			c.over(err)
			return false
		}
	}
	return true
}

// over is when nothing is read any more.
func (c *control) over(err error) {
	c.fail(err)
	c.once.Do(func() { close(c.read) })
}

func (c *control) receive(b []byte) error {
	order, is, err := parseAnswer(b)
	if err != nil {
		return err
	}
	if is && order.tag == 0 {
		c.last.Store(order.stats)
		return nil
	}
	if is {
		c.mu.Lock()
		waiter := c.orders[order.tag]
		delete(c.orders, order.tag)
		c.mu.Unlock()
		if waiter != nil {
			waiter <- order
		}
		return nil
	}
	a, err := parse(b)
	switch {
	case err != nil:
		return err
	case a.Call == bye:
		c.bye.Store(true)
		return ErrEnded
	case a.Call == hello || a.Call >= Other:
		return fmt.Errorf("%w: message %d", ErrProtocol, a.Call)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !a.Answered || len(c.asks) < reportsMax {
		c.makeRoom()
		c.asks = append(c.asks, a)
		c.handOn()
	}
	return nil
}

// makeRoom forgets Asks whose callers wait no more, once there are many. With mu.
func (c *control) makeRoom() {
	if c.waits == nil || len(c.asks) < c.room {
		return
	}
	c.asks = slices.DeleteFunc(c.asks, func(a Ask) bool { return !a.Answered && !c.waits(a.ID) })
	c.room = max(asksRoom, 2*len(c.asks))
}

// handOn has what has come taken, by a goroutine that ends when there is nothing. With mu.
func (c *control) handOn() {
	if !c.handing && c.take != nil && (len(c.asks) > 0 || c.end != nil) {
		c.handing = true
		go c.hand()
	}
}

func (c *control) hand() {
	for {
		c.mu.Lock()
		end := c.end
		// Whose end is ours leaves what waits to another supervisor.
		if end != nil && (len(c.asks) == 0 || errors.Is(end, os.ErrClosed)) {
			c.mu.Unlock()
			c.ended(end)
			return
		}
		if len(c.asks) == 0 {
			c.asks, c.handing = nil, false
			c.mu.Unlock()
			return
		}
		a := c.asks[0]
		c.asks = c.asks[1:]
		c.mu.Unlock()
		c.take(a)
	}
}

// serve is Gate.Serve.
func (c *control) serve(take func(Ask), waits func(id uint64) bool, ended func(error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.take, c.waits, c.ended = take, waits, ended
	c.handOn()
}

// fail releases all who wait.
func (c *control) fail(err error) {
	c.stop(err)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = err
	for tag, waiter := range c.orders {
		waiter <- answer{err: err}
		delete(c.orders, tag)
	}
}

// stop ends the Asks.
func (c *control) stop(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end == nil {
		c.end = err
	}
	c.handOn()
}

// order sends an order and waits until it is carried out.
func (c *control) order(o op, word, value uint32, files ...int) (answer, error) {
	waiter := make(chan answer, 1)
	c.mu.Lock()
	if c.gone != nil {
		c.mu.Unlock()
		return answer{}, c.gone
	}
	c.tag++
	tag := c.tag
	c.orders[tag] = waiter
	c.mu.Unlock()
	var rights []byte
	if len(files) > 0 {
		rights = unix.UnixRights(files...)
	}
	if _, _, err := c.conn.WriteMsgUnix(encodeOrder(o, tag, word, value), rights, nil); err != nil {
		c.mu.Lock()
		delete(c.orders, tag)
		c.mu.Unlock()
		return answer{}, err
	}
	a := <-waiter
	return a, a.err
}

// tell sends an order that nobody answers.
func (c *control) tell(o op, value uint32) error {
	_, err := c.conn.Write(encodeOrder(o, 0, 0, value))
	return err
}

// set sets a word of the board, once.
func (c *control) set(w word) {
	f := &c.flags[w]
	if f.set.Load() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.set.Load() {
		return
	}
	// A gate that is gone decides nothing any more.
	if _, err := c.order(opSet, uint32(w), 1); err == nil {
		f.set.Store(true)
	}
}

func (c *control) setRules(image []byte) error {
	fd, err := unix.MemfdCreate("rules", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "rules")
	defer f.Close()
	if _, err := f.Write(image); err != nil {
		return err
	}
	_, err = c.order(opRules, 0, uint32(len(image)), fd)
	return err
}

func (c *control) close() error {
	if c.watch != nil {
		c.watch.Stop()
		c.watch.Wait()
	}
	c.over(os.ErrClosed)
	return c.conn.Close()
}
