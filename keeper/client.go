package keeper

import (
	"errors"
	"fmt"
	"math"
	"net"
	"sync"
	"time"

	"github.com/tsugiki/tsugiki/internal/sys/fdpass"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/wire"
)

// client is the supervisor's end of a control socket.
//
// Each caller writes its own request. One goroutine, read, reads the replies. It never waits for
// anything else, not even for a write, because the keeper takes no request while there is no room
// here for the last answer. At most one request for sockets is under way at a time, and the others
// wait in queue. So an epoll request, which is written at once, is never behind more than one batch
// in the keeper.
type client struct {
	conn   *net.UnixConn
	broken func() // ends the peer; called once, without mu
	// borrow takes sockets out of the keeper's table, and tells the keeper so. If it returns fewer
	// than requested, there is no room for more here.
	borrow func(numbers []int) ([]int, error)

	mu    sync.Mutex // guards what follows
	gone  error      // not nil: nothing works any more
	pools map[Kind]*pool
	batch *batch  // under way; nil if none
	queue []*pool // want a batch
	calls map[uint32]chan epollAnswer
	tag   uint32
	tidy  *time.Timer
	timed bool // whether tidy is running
}

type epollAnswer struct {
	reply reply
	err   error
}

func newClient(conn *net.UnixConn, broken func()) *client {
	c := &client{
		conn:   conn,
		broken: broken,
		pools:  make(map[Kind]*pool),
		calls:  make(map[uint32]chan epollAnswer),
	}
	c.tidy = time.AfterFunc(time.Hour, c.shrink)
	c.tidy.Stop()
	return c
}

// nextTag numbers a request. The caller holds mu. The greeting has number 0.
func (c *client) nextTag() uint32 {
	c.tag++
	if c.tag == 0 {
		c.tag++
	}
	return c.tag
}

// send writes one request. If the write shows that the peer has gone, send ends the client. Any
// other error means that this request was not sent.
func (c *client) send(r request, rights []byte) error {
	m := r.message()
	_, _, err := c.conn.WriteMsgUnix(wire.Bytes(&m), rights, nil)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EBADF), errors.Is(err, unix.ETOOMANYREFS),
		errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ENOBUFS):
		return fmt.Errorf("ask keeper: %w", err)
	}
	c.fail(fmt.Errorf("%w: %w", ErrGone, err))
	return c.cause()
}

// cause returns why the client has ended.
func (c *client) cause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gone
}

// read takes replies until the connection ends.
func (c *client) read() {
	var buf [loanSize + 1]byte
	oob := make([]byte, rightsSize)
	var sent files
	for {
		n, oobn, flags, err := fdpass.ReadMsg(c.conn, buf[:], oob)
		if err != nil {
			closeAll(sent.fds)
			c.fail(fmt.Errorf("%w: %w", ErrGone, err))
			return
		}
		if n == loanSize && sent.fds == nil {
			if sent, err = c.takeLoan(buf[:n]); err != nil {
				c.fail(fmt.Errorf("%w: %w", ErrGone, err))
				return
			}
			continue
		}
		if fds := fdpass.Descriptors(oob[:oobn], sent.fds); n == 1 && sent.fds == nil {
			sent = files{fds, flags&unix.MSG_CTRUNC != 0}
			continue
		} else if err = c.receive(buf[:n], files{fds, sent.cut}); err != nil {
			closeAll(fds)
			c.fail(fmt.Errorf("%w: %w", ErrGone, err))
			return
		}
		sent = files{}
	}
}

// files are the descriptors that come before a reply.
type files struct {
	fds []int
	cut bool // the kernel could not deliver all descriptors
}

// takeLoan takes the sockets that the keeper lends because the kernel lets it send no descriptors.
func (c *client) takeLoan(b []byte) (files, error) {
	numbers, err := parseLoan(b)
	if err != nil {
		return files{}, err
	}
	fds, err := c.borrow(numbers)
	if err != nil {
		closeAll(fds)
		return files{}, fmt.Errorf("take sockets out of the keeper: %w", err)
	}
	return files{fds, len(fds) < len(numbers)}, nil
}

// receive acts on one reply. It owns the files unless it returns an error.
func (c *client) receive(b []byte, sent files) error {
	r, err := parseReply(b)
	if err != nil {
		return err
	}
	if len(sent.fds) > r.count || len(sent.fds) < r.count && !sent.cut {
		return fmt.Errorf("%w: %d descriptors announced, %d received", errProtocol, r.count, len(sent.fds))
	}
	if r.op == opSockets {
		return c.complete(r, sent.fds)
	}
	c.mu.Lock()
	ch := c.calls[r.tag]
	delete(c.calls, r.tag)
	gone := c.gone != nil
	c.mu.Unlock()
	if ch == nil && !gone {
		return fmt.Errorf("%w: answer to no request", errProtocol)
	}
	if ch != nil {
		ch <- epollAnswer{reply: r} // has room for it
	}
	return nil
}

// fail ends the client: it ends all waits and closes all files except the connection, which the
// peer must not see closed while the peer lives.
func (c *client) fail(cause error) {
	c.mu.Lock()
	if c.gone != nil {
		c.mu.Unlock()
		return
	}
	c.gone = cause
	pools, calls := c.pools, c.calls
	c.pools, c.calls, c.queue, c.batch = nil, nil, nil, nil
	c.tidy.Stop()
	c.mu.Unlock()

	for _, p := range pools {
		closeAll(p.idle)
		for _, w := range p.waiters {
			w <- handed{-1, cause}
		}
	}
	for _, ch := range calls {
		ch <- epollAnswer{err: cause}
	}
	// Ends reads and writes under way.
	_ = c.conn.SetDeadline(time.Unix(1, 0))
	c.broken()
}

// EpollAdd registers the open socket sock with the epoll instance epfd as the
// program would if sock were its descriptor number. Both are descriptors of
// this process. A refusal of the kernel is an *EpollError.
//
// The container can block the call, see keeper/c. Then the client gives the keeper up after
// answerWait.
func (c *client) EpollAdd(epfd, sock, number int, events uint32, data uint64) error {
	return c.epoll(request{op: opEpollAdd, events: events, data: data}, "add", epfd, sock, number)
}

// EpollDel undoes EpollAdd.
func (c *client) EpollDel(epfd, sock, number int) error {
	return c.epoll(request{op: opEpollDel}, "del", epfd, sock, number)
}

func (c *client) epoll(r request, op string, epfd, sock, number int) error {
	if number < 0 || number > math.MaxInt32 {
		return fmt.Errorf("epoll %s: %d is no descriptor number", op, number)
	}
	r.number = int32(number)
	ch := make(chan epollAnswer, 1)
	c.mu.Lock()
	if err := c.gone; err != nil {
		c.mu.Unlock()
		return fmt.Errorf("epoll %s: %w", op, err)
	}
	r.tag = c.nextTag()
	c.calls[r.tag] = ch
	c.mu.Unlock()

	if err := c.send(r, unix.UnixRights(epfd, sock)); err != nil {
		c.mu.Lock()
		delete(c.calls, r.tag)
		c.mu.Unlock()
		return fmt.Errorf("epoll %s: %w", op, err)
	}
	a := c.await(ch)
	switch {
	case a.err != nil:
		return fmt.Errorf("epoll %s: %w", op, a.err)
	case a.reply.op != r.op:
		c.fail(fmt.Errorf("%w: %w: answer to another request", ErrGone, errProtocol))
		return fmt.Errorf("epoll %s: %w", op, c.cause())
	case a.reply.status == statusRefused:
		return &EpollError{Op: op, Errno: a.reply.errno}
	case a.reply.status == statusFault:
		return fmt.Errorf("epoll %s: keeper cannot put the socket at %d: %w", op, number, a.reply.errno)
	}
	return nil
}

// await waits for the answer to an epoll request. It gives up a keeper that does not answer in
// time.
func (c *client) await(ch chan epollAnswer) epollAnswer {
	late := time.NewTimer(answerWait)
	defer late.Stop()
	select {
	case a := <-ch:
		return a
	case <-late.C:
		c.fail(errSilent) // which answers ch, if nothing has
		return <-ch
	}
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
