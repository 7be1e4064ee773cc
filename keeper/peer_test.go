package keeper

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/internal/sys/fdpass"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/wire"
)

// peer is a keeper that the test plays.
type peer struct {
	raw
	client *client
	broken atomic.Int32 // how often the client gave up
	tag    uint32       // of the last request for sockets that has come
}

func newPeer(t testing.TB) *peer {
	t.Helper()
	p := newUnreadPeer(t)
	read := make(chan struct{})
	go func() {
		p.client.read()
		close(read)
	}()
	t.Cleanup(func() {
		p.client.fail(ErrGone)
		<-read
	})
	return p
}

// newUnreadPeer is a peer whose answers the client does not read.
func newUnreadPeer(t testing.TB) *peer {
	t.Helper()
	conn, theirs, err := fdpass.Pair("keeper control")
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.FcntlInt(theirs.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	theirs.Close()
	if err != nil {
		t.Fatal(err)
	}
	tv := unix.NsecToTimeval(int64(testkit.Patience))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		t.Fatal(err)
	}
	p := &peer{raw: raw{t: t, fd: fd}}
	p.client = newClient(conn, func() { p.broken.Add(1) })
	t.Cleanup(func() {
		p.client.fail(ErrGone)
		conn.Close()
		unix.Close(fd)
	})
	return p
}

// request is the client's next request.
func (p *peer) request() request {
	p.t.Helper()
	b, fds := p.receive()
	closeAll(fds)
	m, whole := wire.Read[requestMessage](b)
	if !whole {
		p.t.Fatalf("client sent %d bytes, want a request", len(b))
	}
	r := request{op: m.op, tag: m.tag, count: m.count, kind: Kind{int(m.family), int(m.kind), int(m.protocol)}}
	if r.op == opSockets {
		p.tag = r.tag
	}
	return r
}

// idle checks that the client asks for no sockets but those of the last request that
// has come: it has not decided to, and an epoll request is the next to come.
func (p *peer) idle() {
	p.t.Helper()
	p.client.mu.Lock()
	if b := p.client.batch; b != nil && b.tag != p.tag {
		p.t.Errorf("client asks for sockets of %v, want nothing", b.pool.kind)
	}
	p.client.mu.Unlock()
	added := make(chan error, 1)
	go func() { added <- p.client.EpollAdd(p.fd, p.fd, 5, 0, 0) }()
	r := p.request()
	if r.op != opEpollAdd {
		p.t.Fatalf("client sent %+v, want nothing but an epoll request", r)
	}
	p.answer(reply{op: opEpollAdd, tag: r.tag}, 0)
	if err := p.result(added); err != nil {
		p.t.Error(err)
	}
}

// answer sends a reply with sockets.
func (p *peer) answer(r reply, sockets int) {
	p.t.Helper()
	var fds []int
	for range sockets {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			p.t.Fatal(err)
		}
		fds = append(fds, fd)
	}
	p.answerWith(r, fds)
	closeAll(fds)
}

func (p *peer) answerWith(r reply, fds []int) {
	p.t.Helper()
	m := replyMessage{
		version: protocolVersion, op: r.op, tag: r.tag, status: r.status, errno: uint32(r.errno), count: uint32(r.count),
	}
	if len(fds) > 0 {
		p.send([]byte{0}, fds)
	}
	p.send(wire.Bytes(&m), nil)
}

func (p *peer) serve(r request) {
	p.t.Helper()
	p.answer(reply{op: opSockets, tag: r.tag, count: int(r.count)}, int(r.count))
}

// ask calls Socket and closes what it gets. The channel has room.
func (p *peer) ask(kind Kind, n int) <-chan error {
	results := make(chan error, n)
	for range n {
		go func() {
			fd, err := p.client.Socket(kind)
			if err == nil {
				unix.Close(fd)
			}
			results <- err
		}()
	}
	return results
}

func (p *peer) result(results <-chan error) error {
	p.t.Helper()
	select {
	case err := <-results:
		return err
	case <-time.After(testkit.Patience):
		p.t.Fatal("Socket still waits")
		return nil
	}
}

// waiting waits until n calls wait for a kind.
func (p *peer) waiting(kind Kind, n int) {
	p.t.Helper()
	testkit.Eventually(p.t, func() error {
		p.client.mu.Lock()
		defer p.client.mu.Unlock()
		if pool := p.client.pools[kind]; pool == nil || len(pool.waiters) != n {
			return errors.New("not enough calls wait")
		}
		return nil
	})
}

// stuck waits until so many epoll calls wait for their answers and there is no room
// for another.
func (c *client) stuck(t testing.TB, calls int) {
	t.Helper()
	raw, err := c.conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, func() error {
		c.mu.Lock()
		n := len(c.calls)
		c.mu.Unlock()
		if n != calls {
			return fmt.Errorf("%d calls wait, not %d", n, calls)
		}
		room := 0
		err := raw.Control(func(fd uintptr) { room, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 0) })
		if room > 0 {
			return errors.New("the control socket has room")
		}
		return err
	})
}

// kinds counts the pools.
func (c *client) kinds() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pools)
}

func (p *peer) stock(kind Kind) int {
	p.client.mu.Lock()
	defer p.client.mu.Unlock()
	if pool := p.client.pools[kind]; pool != nil {
		return len(pool.idle)
	}
	return 0
}
