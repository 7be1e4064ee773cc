package host

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/keeper"
	"github.com/tsugiki/tsugiki/outsource/vsock"
	"github.com/tsugiki/tsugiki/outsource/wire"
)

// maker makes sockets of this process's namespace, on whose loopback the tests are.
type maker struct{}

func (maker) Socket(k keeper.Kind) (int, error) {
	return unix.Socket(k.Family, k.Type|unix.SOCK_CLOEXEC, k.Protocol)
}
func (maker) EpollAdd(int, int, int, uint32, uint64) error { return errors.ErrUnsupported }
func (maker) EpollDel(int, int, int) error                 { return errors.ErrUnsupported }

// engine lets the kernel carry on with what stays on the loopback. It binds as the program says.
type engine struct{}

func (e *engine) Connect(_ graft.Program, _ int, to netip.AddrPort) (graft.Answer, error) {
	if !to.Addr().Unmap().IsLoopback() {
		return graft.Answer{Action: graft.Fail, Errno: unix.ENETUNREACH}, nil
	}
	return graft.Answer{}, nil
}

func (e *engine) Send(p graft.Program, number int, to netip.AddrPort) (graft.Answer, error) {
	return e.Connect(p, number, to)
}

func (e *engine) Bind(p graft.Program, number int, at netip.AddrPort) (graft.Answer, error) {
	file, err := p.File(number)
	if err != nil {
		return graft.Answer{}, err
	}
	defer unix.Close(file)
	var errno unix.Errno
	if err := unix.Bind(file, sockaddr.Of(at)); errors.As(err, &errno) {
		return graft.Answer{Action: graft.Fail, Errno: errno}, nil
	}
	return graft.Answer{Action: graft.Succeed}, nil
}

func (e *engine) Listen(graft.Program, int, int) (graft.Answer, error) { return graft.Answer{}, nil }

func (e *engine) Accept(graft.Program, int) (*graft.Connection, bool, graft.Answer, error) {
	return nil, false, graft.Answer{}, nil
}

func (e *engine) Name(graft.Program, int, bool) (netip.AddrPort, graft.Answer, error) {
	return netip.AddrPort{}, graft.Answer{}, nil
}

// guest takes dials. A test says what becomes of them.
type guest struct {
	dials  chan vsock.Socket
	answer func() error
}

func (g *guest) Dial(_ uint16, _, _ uint32, s vsock.Socket, done func(error)) {
	err := g.answer()
	if err == nil {
		g.dials <- s
	}
	done(err)
}
func (g *guest) Close() error { return nil }

// rig is a VM with a control stream.
type rig struct {
	*testing.T
	vm    *VM
	guest *guest
	conn  net.Conn
	last  uint32
	// alive is what the supervisor says about handles.
	alive func(handle uint32) bool
	// gone says that programs have no UDP ports.
	gone atomic.Bool
	// mute says that the supervisor answers no questions.
	mute bool
	// questions, if it is there, takes them: the test answers.
	questions chan *wire.Message

	mu      sync.Mutex // guards what follows
	replies map[uint32]chan *wire.Message
}

func newRig(t *testing.T) *rig {
	t.Helper()
	g := &guest{dials: make(chan vsock.Socket, 10), answer: func() error { return nil }}
	r := &rig{T: t, guest: g, alive: func(uint32) bool { return true }, replies: map[uint32]chan *wire.Message{}}
	r.vm = New(Config{
		Engine: &engine{},
		Maker:  func() (graft.SocketMaker, error) { return maker{}, nil },
		Covers: func(_ int, at netip.AddrPort) bool { return at.Addr().IsLoopback() },
		Log:    slog.New(slog.DiscardHandler),
	}, g)
	t.Cleanup(r.vm.Close)
	ours, theirs := net.Pipe()
	r.conn = ours
	s := newStream(r.vm, theirs)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.serve()
	}()
	go r.read()
	t.Cleanup(func() {
		ours.Close()
		<-done
	})
	return r
}

// stream returns a control stream of another supervisor, which says nothing.
func (r *rig) stream() *stream {
	ours, theirs := net.Pipe()
	r.Cleanup(func() { ours.Close() })
	return newStream(r.vm, theirs)
}

// read is the supervisor's reader.
func (r *rig) read() {
	for {
		m, err := wire.Read(r.conn)
		if err != nil {
			return
		}
		if m.Flags&wire.FlagReply == 0 {
			if r.mute {
				continue
			}
			if r.questions != nil {
				r.questions <- m
				continue
			}
			reply := &wire.Message{Op: m.Op, Flags: wire.FlagReply, ID: m.ID, Handle: m.Handle}
			if !r.alive(m.Handle) || m.Type == unix.SOCK_DGRAM && r.gone.Load() {
				reply.Errno = uint32(unix.ENOENT)
			}
			go r.write(reply)
			continue
		}
		r.mu.Lock()
		r.replies[m.ID] <- m
		r.mu.Unlock()
	}
}

func (r *rig) write(m *wire.Message) {
	b, err := m.Append(nil)
	if err == nil {
		_, err = r.conn.Write(b)
	}
	if err != nil && !errors.Is(err, io.ErrClosedPipe) {
		r.Error(err)
	}
}

func (r *rig) ask(m *wire.Message) *wire.Message {
	r.Helper()
	reply := make(chan *wire.Message, 1)
	r.mu.Lock()
	r.last++
	m.ID = r.last
	r.replies[m.ID] = reply
	r.mu.Unlock()
	r.write(m)
	select {
	case got := <-reply:
		return got
	case <-time.After(testkit.Patience):
		r.Fatalf("no reply to %+v", m)
		return nil
	}
}

func (r *rig) connect(to netip.AddrPort) *wire.Message {
	r.Helper()
	return r.ask(&wire.Message{Op: wire.Connect, Type: unix.SOCK_STREAM, Name: to})
}

func (r *rig) want(m *wire.Message, errno unix.Errno) {
	r.Helper()
	if unix.Errno(m.Errno) != errno {
		r.Fatalf("%+v: errno %v, want %v", m, unix.Errno(m.Errno), errno)
	}
}

// join makes a data connection of a handle. It returns the socket that the device got; false if the
// request was refused.
func (r *rig) join(handle uint32) (vsock.Socket, bool) {
	r.Helper()
	accepted, refused := make(chan vsock.Socket, 1), make(chan struct{})
	q := vsock.NewRequest(vsock.Stream, wire.DataPort(handle), wire.DataPort(handle), func(s vsock.Socket) { accepted <- s }, func() { close(refused) })
	r.vm.Request(q)
	select {
	case s := <-accepted:
		return s, true
	case <-refused:
		return vsock.Socket{}, false
	case <-time.After(testkit.Patience):
		r.Fatal("the data connection is not answered")
		return vsock.Socket{}, false
	}
}
