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

// reportsMax bounds the number of reports of answered calls that nobody has taken yet.
const reportsMax = 1 << 14

// pendingRoom is the least number of Requests for which there is room, before those are forgotten
// whose callers do not wait any more. The gate bounds the waiting calls, but an interrupted caller
// calls again, each time with a new Request.
const pendingRoom = 1 << 12

// messagesAtOnce is the number of messages that are read before other work has its turn, including
// the end of reading.
const messagesAtOnce = 64

// control is a supervisor's end of a gate's control socket. It reads messages at once, so that
// orders are answered even while nobody takes a Request. It uses no goroutine until a message
// comes.
type control struct {
	conn  *net.UnixConn
	watch *watch.Watch          // nil before it is read
	read  chan struct{}         // closed when reading has ended,
	once  sync.Once             // by this
	bye   atomic.Bool           // the gate has ended because its container has
	last  atomic.Pointer[Stats] // the gate's counters at such an end

	mu      sync.Mutex // guards what follows
	take    func(Request)
	waits   func(id uint64) bool // nil before take is set
	ended   func(error)
	handing bool // a goroutine hands on Requests, or has handed on the end
	pending []Request
	room    int   // for so many Requests, before some are forgotten
	end     error // why no more Requests come
	gone    error // why no more answers come
	orders  orders

	flags [words]flag
}

func newControl(conn *net.UnixConn) *control {
	return &control{conn: conn, read: make(chan struct{}), orders: newOrders()}
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

// readAll reads all present messages, and tells whether more may come.
func (c *control) readAll(raw syscall.RawConn) bool {
	var buf [messageMax + 1]byte
	for range messagesAtOnce {
		n := 0
		var err error
		if rerr := raw.Read(func(fd uintptr) bool {
			n, _, err = unix.Recvfrom(int(fd), buf[:], unix.MSG_DONTWAIT)
			if err == nil && n == 0 { // the last message may have come meanwhile, as in fdpass.ReadMsg
				n, _, err = unix.Recvfrom(int(fd), buf[:], unix.MSG_DONTWAIT)
			}
			return true
		}); rerr != nil {
			err = rerr
		}
		switch {
		case errors.Is(err, unix.EAGAIN):
			return true
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ECONNRESET):
			// ECONNRESET says that the gate ended before it had read all that we sent. It comes
			// before the gate's last messages.
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

// over handles the end of reading.
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
		c.answered(order)
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
	if !a.Answered || len(c.pending) < reportsMax {
		c.makeRoom()
		c.pending = append(c.pending, a)
		c.handOn()
	}
	return nil
}

// makeRoom forgets Requests whose callers do not wait any more, once there are many. The caller
// holds mu.
func (c *control) makeRoom() {
	if c.waits == nil || len(c.pending) < c.room {
		return
	}
	c.pending = slices.DeleteFunc(c.pending, func(a Request) bool { return !a.Answered && !c.waits(a.ID) })
	c.room = max(pendingRoom, 2*len(c.pending))
}

// handOn starts a goroutine that hands on the pending Requests and ends when there are none. The
// caller holds mu.
func (c *control) handOn() {
	if !c.handing && c.take != nil && (len(c.pending) > 0 || c.end != nil) {
		c.handing = true
		go c.hand()
	}
}

func (c *control) hand() {
	for {
		c.mu.Lock()
		end := c.end
		if end != nil && len(c.pending) == 0 {
			c.mu.Unlock()
			c.ended(end)
			return
		}
		if len(c.pending) == 0 {
			c.pending, c.handing = nil, false
			c.mu.Unlock()
			return
		}
		a := c.pending[0]
		c.pending = c.pending[1:]
		c.mu.Unlock()
		// If this process has ended the conversation, another supervisor answers the unanswered
		// Requests. Nobody else gets the reports of answered calls.
		if a.Answered || !errors.Is(end, os.ErrClosed) {
			c.take(a)
		}
	}
}

// serve implements Gate.Serve.
func (c *control) serve(take func(Request), waits func(id uint64) bool, ended func(error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.take, c.waits, c.ended = take, waits, ended
	c.handOn()
}

// fail ends all waits for answers, and the Requests. Who hears of the end can give no order any more.
func (c *control) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = err
	c.orders.fail(err)
	c.endRequests(err)
}

// stop ends the Requests.
func (c *control) stop(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endRequests(err)
}

// endRequests ends the Requests. The caller holds mu.
func (c *control) endRequests(err error) {
	if c.end == nil {
		c.end = err
	}
	c.handOn()
}

func (c *control) close() error {
	if c.watch != nil {
		c.watch.Stop()
		c.watch.Wait()
	}
	c.over(os.ErrClosed)
	return c.conn.Close()
}
