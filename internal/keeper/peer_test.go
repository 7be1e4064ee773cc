package keeper

import (
	"encoding/binary"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/programs"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// peer is a keeper that the test plays.
type peer struct {
	raw
	client *client
	broken atomic.Int32 // how often the client gave up
}

func newPeer(t testing.TB) *peer {
	t.Helper()
	conn, theirs, err := programs.ControlPair("keeper control")
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.FcntlInt(theirs.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	theirs.Close()
	if err != nil {
		t.Fatal(err)
	}
	tv := unix.NsecToTimeval(int64(10 * time.Second))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		t.Fatal(err)
	}
	p := &peer{raw: raw{t: t, fd: fd}}
	p.client = newClient(conn, func() { p.broken.Add(1) })
	read := make(chan struct{})
	go func() {
		p.client.read()
		close(read)
	}()
	t.Cleanup(func() {
		p.client.fail(ErrGone)
		conn.Close()
		unix.Close(fd)
		<-read
	})
	return p
}

// request is the client's next request.
func (p *peer) request() request {
	p.t.Helper()
	b, fds := p.receive()
	closeAll(fds)
	e := binary.NativeEndian
	return request{
		op: opcode(e.Uint16(b[2:])), tag: e.Uint32(b[4:]), count: e.Uint32(b[20:]),
		kind: Kind{int(int32(e.Uint32(b[8:]))), int(int32(e.Uint32(b[12:]))), int(int32(e.Uint32(b[16:])))},
	}
}

// idle checks that the client asks for nothing.
func (p *peer) idle() {
	p.t.Helper()
	time.Sleep(20 * time.Millisecond)
	if n, _, _, _, err := unix.Recvmsg(p.fd, make([]byte, 100), nil, unix.MSG_DONTWAIT|unix.MSG_PEEK); !errors.Is(err, unix.EAGAIN) {
		p.t.Errorf("client sent %d bytes (%v), want nothing", n, err)
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
	var b [replySize]byte
	e := binary.NativeEndian
	e.PutUint16(b[0:], protocolVersion)
	e.PutUint16(b[2:], uint16(r.op))
	e.PutUint32(b[4:], r.tag)
	e.PutUint32(b[8:], uint32(r.status))
	e.PutUint32(b[12:], uint32(r.errno))
	e.PutUint32(b[16:], uint32(r.count))
	if len(fds) > 0 {
		p.send([]byte{0}, fds)
	}
	p.send(b[:], nil)
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
	case <-time.After(deathWait):
		p.t.Fatal("Socket still waits")
		return nil
	}
}

// waiting waits until n calls wait for a kind.
func (p *peer) waiting(kind Kind, n int) {
	p.t.Helper()
	testkit.Eventually(p.t, deathWait, func() error {
		p.client.mu.Lock()
		defer p.client.mu.Unlock()
		if pool := p.client.pools[kind]; pool == nil || len(pool.waiters) != n {
			return errors.New("not enough calls wait")
		}
		return nil
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
