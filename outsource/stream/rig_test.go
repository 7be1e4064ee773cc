package stream

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/outsource/vsock"
	"github.com/tsugiki/tsugiki/outsource/wire"
)

// rig is a Guest, the host behind it, and a VMM that does what Firecracker's documentation says.
type rig struct {
	testing.TB
	path     string
	guest    *Guest
	config   Config
	counters vsock.Counters
	requests chan *vsock.Request
}

func (r *rig) Request(q *vsock.Request) { r.requests <- q }

// prepare returns a rig without a guest.
func prepare(t testing.TB) *rig {
	t.Helper()
	r := &rig{TB: t, path: filepath.Join(t.TempDir(), "v"), requests: make(chan *vsock.Request, connsMax+1)}
	r.config = Config{Counters: &r.counters, Log: slog.New(slog.DiscardHandler)}
	return r
}

func newRig(t testing.TB) *rig {
	t.Helper()
	r := prepare(t)
	var err error
	if r.guest, err = Hybrid(r.path, r.config, func(*Guest) vsock.Handler { return r }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.end() })
	return r
}

// end ends the guest, and refuses what nobody has answered.
func (r *rig) end() {
	if err := r.guest.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		r.Error(err)
	}
	ended := make(chan struct{})
	go func() {
		r.guest.Wait()
		close(ended)
	}()
	for {
		select {
		case q := <-r.requests:
			q.Refuse()
		case <-ended:
			return
		case <-time.After(testkit.Patience):
			r.Error("the guest's connections do not end")
			return
		}
	}
}

// limit bounds the time that a test waits for a connection.
func limit(t testing.TB, c net.Conn) {
	t.Helper()
	if err := c.SetDeadline(time.Now().Add(testkit.Patience)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
}

// open has the VMM connect to a port of the host.
func (r *rig) open(port uint32) *net.UnixConn {
	r.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: fmt.Sprintf("%s_%d", r.path, port), Net: "unix"})
	if err != nil {
		r.Fatal(err)
	}
	limit(r, c)
	return c
}

// request returns the next request.
func (r *rig) request() *vsock.Request {
	r.Helper()
	select {
	case q := <-r.requests:
		return q
	case <-time.After(testkit.Patience):
		r.Fatal("no request")
		return nil
	}
}

// tcp returns a connected TCP socket for the guest, and its peer.
func tcp(t testing.TB) (vsock.Socket, *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	limit(t, peer)
	f, err := c.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	sock, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	f.Close()
	c.Close()
	if err != nil {
		t.Fatal(err)
	}
	return vsock.Socket{File: sock}, peer.(*net.TCPConn)
}

// data opens a data connection of a handle. It returns the VMM's end, and the peer of the host's socket.
func (r *rig) data(handle uint32) (*net.UnixConn, *net.TCPConn) {
	r.Helper()
	c := r.open(wire.DataPort(0))
	preamble := wire.Preamble(handle)
	if _, err := c.Write(preamble[:]); err != nil {
		r.Fatal(err)
	}
	q := r.request()
	if q.Type != vsock.Stream || q.From != wire.DataPort(handle) || q.To != wire.DataPort(handle) {
		r.Fatalf("%+v", q)
	}
	s, peer := tcp(r)
	q.Accept(s)
	var got [8]byte
	if _, err := io.ReadFull(c, got[:]); err != nil || got != preamble {
		r.Fatalf("% x, %v", got, err)
	}
	return c, peer
}

// vmm listens as a VMM does. Each command of a host goes to answer.
func (r *rig) vmm(answer func(c *net.UnixConn, command string)) {
	r.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: r.path, Net: "unix"})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			command, err := bufio.NewReaderSize(c, 16).ReadString('\n')
			if err != nil {
				c.Close()
				continue
			}
			answer(c, command)
		}
	}()
}

// dial has the host connect to a port of the guest's.
func (r *rig) dial(to uint32, s vsock.Socket) error {
	r.Helper()
	done := make(chan error, 1)
	r.guest.Dial(vsock.Stream, wire.DataPort(9), to, s, func(err error) { done <- err })
	select {
	case err := <-done:
		return err
	case <-time.After(testkit.Patience):
		r.Fatal("the dial has no end")
		return nil
	}
}

// files is the number of files that this process has open, but for idle pipes.
func files(t testing.TB) int {
	t.Helper()
	open, err := testkit.OpenFiles(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	pipes.mu.Lock()
	defer pipes.mu.Unlock()
	return len(open) - 2*len(pipes.idle)
}
