package stream

import (
	"errors"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/outsource/vsock"
)

// joint is a connection of the guest's that is joined with a socket of the host.
//
//	both      bytes go both ways                      → one, ended
//	one       one side has ended what it sends        → ended
//	ended     the sockets are closed
type joint struct {
	g      *Guest
	guest  conn
	host   *os.File
	socket vsock.Socket
	piece  int
	first  []byte // the guest gets these before those of host

	mu    sync.Mutex // guards what follows
	half  bool       // one side has ended what it sends
	ended bool
}

// join joins a connection with a socket, which it owns. The guest gets the greeting first. The place of the
// connection is left at its end. join does not wait: a guest need not take a byte.
func (g *Guest) join(c conn, s vsock.Socket, piece int, dialed bool, greeting []byte) {
	g.Counters.Begin(dialed)
	j := &joint{g: g, guest: c, socket: s, piece: piece, first: greeting}
	var err error
	if j.host, err = fileOf(s.File); err != nil {
		g.Log.Error("connection of a guest", "err", err)
		unix.Close(s.File)
		j.end(true)
		return
	}
	if !g.keep(j) {
		j.end(true)
		return
	}
	go j.fromGuest()
	go j.toGuest()
}

// Close ends the connection. Bytes may be missing, so the host's peer gets a reset.
func (j *joint) Close() error {
	j.end(true)
	return nil
}

// end closes both sockets.
func (j *joint) end(reset bool) {
	j.mu.Lock()
	was := j.ended
	j.ended = true
	j.mu.Unlock()
	if was {
		return
	}
	if reset {
		j.g.Counters.Resets.Add(1)
	}
	if j.host != nil {
		if reset {
			j.linger()
		}
		j.host.Close()
	}
	j.guest.Close()
	j.g.forget(j)
	j.g.Counters.Open.Add(-1)
	j.g.leave(j.piece)
	if j.socket.Ended != nil {
		j.socket.Ended()
	}
}

// linger has the close of the host's socket be a reset.
func (j *joint) linger() {
	onFile(j.host, func(fd int) {
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	})
}

// onFile calls f with the number of a file, if it is open.
func onFile(c interface {
	SyscallConn() (syscall.RawConn, error)
}, f func(fd int),
) {
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { f(int(fd)) })
	}
}

// endHalf notes that one side sends no more; true if the other has ended too.
func (j *joint) endHalf() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	was := j.half
	j.half = true
	return was
}

func (j *joint) fromGuest() {
	err := j.move(j.host, j.guest, func(n int) { j.g.Counters.FromGuest.Add(uint64(n)) })
	if err != nil {
		j.end(true)
		return
	}
	onFile(j.host, func(fd int) { _ = unix.Shutdown(fd, unix.SHUT_WR) })
	if !j.endHalf() && !j.awaitHangUp() {
		return // the other direction ends it
	}
	j.end(false)
}

func (j *joint) toGuest() {
	if len(j.first) > 0 {
		if _, err := j.guest.Write(j.first); err != nil {
			j.end(true)
			return
		}
	}
	err := j.move(j.guest, j.host, func(n int) { j.g.Counters.ToGuest.Add(uint64(n)) })
	if err != nil {
		j.end(true)
		return
	}
	onFile(j.guest, func(fd int) { _ = unix.Shutdown(fd, unix.SHUT_WR) })
	if j.endHalf() {
		j.end(false)
	}
}

// awaitHangUp waits until the guest takes no more either; false if the connection has ended before. Its
// program has closed the socket then, and TCP would do the same.
func (j *joint) awaitHangUp() bool {
	raw, err := j.guest.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Read(func(fd uintptr) bool {
		list := []unix.PollFd{{Fd: int32(fd)}} // POLLHUP and POLLERR need not be asked for
		n, err := unix.Poll(list, 0)
		return err == nil && n > 0
	})
	return err == nil
}

// move moves bytes until the end of from.
func (j *joint) move(to, from conn, count func(int)) error {
	in, err := from.SyscallConn()
	if err != nil {
		return err
	}
	out, err := to.SyscallConn()
	if err != nil {
		return err
	}
	for {
		p, n, err := j.fill(in)
		if n == 0 || err != nil {
			return err
		}
		if err := j.drain(out, p, n); err != nil {
			p.close()
			return err
		}
		pipes.give(p)
		count(n)
	}
}

// fill waits for bytes, and moves some into a pipe. At the end there are none, and no pipe.
func (j *joint) fill(in syscall.RawConn) (p *pipe, n int, err error) {
	rerr := in.Read(func(fd uintptr) bool {
		if p == nil {
			if p, err = pipes.take(); err != nil {
				return true
			}
		}
		n, err = j.splice(int(fd), p.write, j.piece)
		if n == 0 && (err == nil || errors.Is(err, unix.EAGAIN)) {
			n, err = j.stepOver(int(fd), p.write)
		}
		if errors.Is(err, unix.EAGAIN) { // it waits, and needs no pipe
			pipes.give(p)
			p, n, err = nil, 0, nil
			return false
		}
		return true
	})
	if err = errors.Join(rerr, err); p != nil && (n == 0 || err != nil) {
		pipes.give(p)
		p = nil
	}
	return p, n, err
}

// drain moves all of a pipe's n bytes into a socket.
func (j *joint) drain(out syscall.RawConn, p *pipe, n int) (err error) {
	for n > 0 {
		var k int
		werr := out.Write(func(fd uintptr) bool {
			k, err = j.splice(p.read, int(fd), n)
			return !errors.Is(err, unix.EAGAIN)
		})
		if err = errors.Join(werr, err); err != nil {
			return err
		}
		n -= k
	}
	return nil
}

// splice moves up to n bytes without waiting.
func (j *joint) splice(from, to, n int) (moved int, err error) {
	j.g.Work.Do(func() {
		moved, err = ignoringEINTR(func() (int, error) {
			k, err := unix.Splice(from, nil, to, nil, n, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
			return int(k), err
		})
	})
	return max(moved, 0), err
}

// ignoringEINTR repeats a call that a signal has interrupted.
func ignoringEINTR(call func() (int, error)) (n int, err error) {
	for {
		if n, err = call(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// stepMax is how many bytes stepOver moves, which every empty pipe has room for.
const stepMax = 512

// stepOver moves bytes where splice(2) has none. splice(2) never goes beyond the mark of an urgent byte
// (MSG_OOB, tcp(7)): it says EAGAIN there, and 0 once the peer has ended. read(2) steps over the mark.
func (j *joint) stepOver(from, pipe int) (moved int, err error) {
	j.g.Work.Do(func() {
		var b [stepMax]byte
		if moved, err = ignoringEINTR(func() (int, error) { return unix.Read(from, b[:]) }); moved > 0 {
			moved, err = unix.Write(pipe, b[:moved]) // it has room for all
		}
	})
	return max(moved, 0), err
}

// pipe is an empty pipe, or one with bytes that no socket has.
type pipe struct{ read, write int }

func (p *pipe) close() {
	unix.Close(p.read)
	unix.Close(p.write)
}

// pipePool has empty pipes. A connection has one only while bytes are on their way.
type pipePool struct {
	mu   sync.Mutex // guards what follows
	idle []*pipe
}

var pipes pipePool

// idlePipes is how many pipes are kept.
const idlePipes = 32

func (l *pipePool) take() (*pipe, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.idle); n > 0 {
		p := l.idle[n-1]
		l.idle = l.idle[:n-1]
		return p, nil
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, os.NewSyscallError("pipe2", err)
	}
	return &pipe{fds[0], fds[1]}, nil
}

// give takes back an empty pipe.
func (l *pipePool) give(p *pipe) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.idle) >= idlePipes {
		p.close()
		return
	}
	l.idle = append(l.idle, p)
}

// ProbeSplice moves a byte from a unix socket to another, as a connection of hybrid vsock does.
func ProbeSplice() error {
	var pairs [2][2]int
	for i := range pairs {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("socketpair", err)
		}
		pairs[i] = fds
		defer unix.Close(fds[0])
		defer unix.Close(fds[1])
	}
	p, err := pipes.take()
	if err != nil {
		return err
	}
	defer p.close()
	if _, err := unix.Write(pairs[0][0], []byte{1}); err != nil {
		return err
	}
	for _, way := range [][2]int{{pairs[0][1], p.write}, {p.read, pairs[1][0]}} {
		if _, err := unix.Splice(way[0], nil, way[1], nil, 1, unix.SPLICE_F_NONBLOCK); err != nil {
			return os.NewSyscallError("splice", err)
		}
	}
	return nil
}
