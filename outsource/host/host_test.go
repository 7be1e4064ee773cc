package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/graft"
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

func (e *engine) Bind(p graft.Program, number int, at netip.AddrPort) (graft.Answer, error) {
	file, err := p.File(number)
	if err != nil {
		return graft.Answer{}, err
	}
	defer unix.Close(file)
	var errno unix.Errno
	if err := unix.Bind(file, sockaddrOf(at)); errors.As(err, &errno) {
		return graft.Answer{Action: graft.Fail, Errno: errno}, nil
	}
	return graft.Answer{Action: graft.Succeed}, nil
}

func (e *engine) Listen(graft.Program, int, int) (graft.Answer, error) { return graft.Answer{}, nil }

func (e *engine) Accept(graft.Program, int) (int, netip.AddrPort, bool, graft.Answer, error) {
	return -1, netip.AddrPort{}, false, graft.Answer{}, nil
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
		Covers: func(at netip.AddrPort) bool { return at.Addr().IsLoopback() },
		Log:    slog.New(slog.DiscardHandler),
	}, g)
	t.Cleanup(r.vm.Close)
	ours, theirs := net.Pipe()
	r.conn = ours
	s := &stream{vm: r.vm, conn: theirs, slots: make(chan struct{}, requestsMax), alive: map[uint32]chan bool{}, mine: map[uint32]*handle{}}
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

// read is the supervisor's reader.
func (r *rig) read() {
	for {
		m, err := wire.Read(r.conn)
		if err != nil {
			return
		}
		if m.Flags&wire.FlagReply == 0 {
			reply := &wire.Message{Op: m.Op, Flags: wire.FlagReply, ID: m.ID, Handle: m.Handle}
			if !r.alive(m.Handle) {
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

func listen(t *testing.T) (net.Listener, netip.AddrPort) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, l.Addr().(*net.TCPAddr).AddrPort()
}

func begun(m *wire.Message) bool { return m.Errno == 0 || unix.Errno(m.Errno) == unix.EINPROGRESS }

func TestConnect(t *testing.T) {
	r := newRig(t)
	l, at := listen(t)
	m := r.connect(at)
	if !begun(m) {
		t.Fatalf("connect: %v", unix.Errno(m.Errno))
	}
	s, ok := r.join(m.Handle)
	if !ok {
		t.Fatal("the data connection is refused")
	}
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	names := r.ask(&wire.Message{Op: wire.Names, Handle: m.Handle})
	if names.Peer != at || names.Name.String() != peer.RemoteAddr().String() {
		t.Errorf("names %v and %v", names.Name, names.Peer)
	}
	if _, ok := r.join(m.Handle); ok {
		t.Error("a handle has two data connections")
	}
	// The end of the data connection is that of the handle, and of the socket.
	unix.Close(s.File)
	s.Ended()
	if b, err := io.ReadAll(peer); err != nil || len(b) > 0 {
		t.Errorf("%q, %v", b, err)
	}
	testkit.Eventually(t, func() error {
		if r.vm.find(m.Handle) != nil {
			return errors.New("the handle is there")
		}
		return nil
	})
}

func TestConnectFails(t *testing.T) {
	r := newRig(t)
	l, at := listen(t)
	l.Close()
	m := r.connect(at)
	if begun(m) { // loopback is fast enough to refuse at once, or not
		if _, ok := r.join(m.Handle); ok {
			t.Fatal("the data connection is accepted")
		}
		r.want(r.ask(&wire.Message{Op: wire.Names, Handle: m.Handle}), unix.ECONNREFUSED)
	} else {
		r.want(m, unix.ECONNREFUSED)
	}
	r.want(r.connect(netip.MustParseAddrPort("192.0.2.1:80")), unix.ENETUNREACH)
	r.want(r.ask(&wire.Message{Op: wire.Names, Handle: 12345}), unix.EBADF)
	r.want(r.ask(&wire.Message{Op: wire.Connect, Type: unix.SOCK_RAW, Name: at}), unix.EOPNOTSUPP)
}

func TestOptions(t *testing.T) {
	r := newRig(t)
	_, at := listen(t)
	m := r.connect(at)
	set := func(level, name uint16, value []byte) *wire.Message {
		return r.ask(&wire.Message{Op: wire.Set, Handle: m.Handle, Options: []wire.Option{{Level: level, Name: name, Value: value}}})
	}
	one := []byte{1, 0, 0, 0}
	r.want(set(unix.SOL_TCP, unix.TCP_NODELAY, one), 0)
	r.want(set(unix.SOL_TCP, unix.TCP_NODELAY, one[:2]), unix.EINVAL)
	got := r.ask(&wire.Message{Op: wire.Get, Handle: m.Handle, Options: []wire.Option{{Level: unix.SOL_TCP, Name: unix.TCP_NODELAY, Value: make([]byte, 4)}}})
	if len(got.Options) != 1 || got.Options[0].Value[0] != 1 {
		t.Errorf("TCP_NODELAY: %+v", got)
	}
	for _, name := range []uint16{unix.SO_MARK, unix.SO_BINDTODEVICE, unix.SO_RCVBUFFORCE, unix.SO_PRIORITY, unix.SO_ATTACH_FILTER, unix.SO_LINGER} {
		r.want(set(unix.SOL_SOCKET, name, one), unix.ENOPROTOOPT)
	}
	r.want(set(unix.SOL_IP, unix.IP_TRANSPARENT, one), unix.ENOPROTOOPT)
	r.want(set(unix.SOL_TCP, unix.TCP_CONGESTION, make([]byte, 16)), unix.EPERM)
}

// bound returns a handle that is bound to a free port of the loopback.
func (r *rig) bound(at netip.AddrPort) *wire.Message {
	r.Helper()
	return r.ask(&wire.Message{Op: wire.Bind, Type: unix.SOCK_STREAM, Name: at})
}

func TestListen(t *testing.T) {
	r := newRig(t)
	if m := r.bound(netip.MustParseAddrPort("0.0.0.0:80")); m.Flags&wire.FlagLocal == 0 {
		t.Errorf("no rule covers it, but: %+v", m)
	}
	m := r.bound(netip.MustParseAddrPort("127.0.0.1:0"))
	r.want(m, 0)
	refusals := 3
	r.guest.answer = func() error { // the program's queue is full at first
		if refusals--; refusals >= 0 {
			return vsock.ErrRefused
		}
		return nil
	}
	r.want(r.ask(&wire.Message{Op: wire.Listen, Handle: m.Handle, Number: 5}), 0)
	c, err := net.Dial("tcp", m.Name.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s := <-r.guest.dials
	defer func() {
		unix.Close(s.File)
		s.Ended()
	}()
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(s.File), "data")
	b := make([]byte, 5)
	if _, err := io.ReadFull(f, b); err != nil || string(b) != "hello" {
		t.Errorf("%q, %v", b, err)
	}
	if s.File, err = unix.Dup(s.File); err != nil {
		t.Fatal(err)
	}
	f.Close()
}

// TestServerHasGone has a program end without a word. The next one gets its port.
func TestServerHasGone(t *testing.T) {
	r := newRig(t)
	m := r.bound(netip.MustParseAddrPort("127.0.0.1:0"))
	r.want(r.ask(&wire.Message{Op: wire.Listen, Handle: m.Handle, Number: 5}), 0)
	r.want(r.bound(m.Name), unix.EADDRINUSE)
	r.alive = func(handle uint32) bool { return handle != m.Handle }
	r.want(r.bound(m.Name), 0)

	// One that refuses a connection is asked after.
	m = r.bound(netip.MustParseAddrPort("127.0.0.1:0"))
	r.want(r.ask(&wire.Message{Op: wire.Listen, Handle: m.Handle, Number: 5}), 0)
	r.alive = func(uint32) bool { return false }
	r.guest.answer = func() error { return vsock.ErrRefused }
	if c, err := net.Dial("tcp", m.Name.String()); err == nil {
		defer c.Close()
		_, _ = io.ReadAll(c) // it ends
	}
	testkit.Eventually(t, func() error {
		if c, err := net.Dial("tcp", m.Name.String()); err == nil {
			c.Close()
			return fmt.Errorf("%s listens", m.Name)
		}
		return nil
	})
}

// TestStreamEnds has a supervisor end: what belonged to it is gone, except joined connections.
func TestStreamEnds(t *testing.T) {
	r := newRig(t)
	l, at := listen(t)
	joined, waiting := r.connect(at), r.connect(at)
	s, ok := r.join(joined.Handle)
	if !ok {
		t.Fatal("the data connection is refused")
	}
	server := r.bound(netip.MustParseAddrPort("127.0.0.1:0"))
	r.want(r.ask(&wire.Message{Op: wire.Listen, Handle: server.Handle, Number: 5}), 0)
	r.conn.Close()
	testkit.Eventually(t, func() error {
		if r.vm.find(waiting.Handle) != nil || r.vm.find(server.Handle) != nil {
			return errors.New("handles of the stream are there")
		}
		return nil
	})
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	if _, err := unix.Write(s.File, []byte("goes on")); err != nil {
		t.Error(err)
	}
	b := make([]byte, 7)
	if _, err := io.ReadFull(peer, b); err != nil {
		t.Error(err)
	}
	unix.Close(s.File)
	s.Ended()
}

// TestFlood has a guest make handles until there is no room, and others once there is.
func TestFlood(t *testing.T) {
	r := newRig(t)
	var some []*handle
	for range handlesMax {
		h, err := r.vm.add(-1, nil)
		if err != nil {
			t.Fatal(err)
		}
		some = append(some, h)
	}
	r.want(r.connect(netip.MustParseAddrPort("127.0.0.1:1")), unix.ENOBUFS)
	for _, h := range some {
		h.remove()
	}
	if m := r.connect(netip.MustParseAddrPort("127.0.0.1:1")); unix.Errno(m.Errno) == unix.ENOBUFS {
		t.Error("no room after all")
	}
}

// FuzzRequests has a guest say anything. The stream answers or ends.
func FuzzRequests(f *testing.F) {
	for _, m := range []wire.Message{
		{Op: wire.Connect, Type: 1, Name: netip.MustParseAddrPort("127.0.0.1:1")}, {Op: wire.Bind, Type: 1, Name: netip.MustParseAddrPort("127.0.0.1:0")},
		{Op: wire.Listen, Handle: 1}, {Op: wire.Alive, Flags: wire.FlagReply}, {Op: wire.Set, Handle: 1, Options: []wire.Option{{Level: 6, Name: 1}}},
	} {
		b, err := m.Append(nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append(b, b...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		g := &guest{dials: make(chan vsock.Socket, 10), answer: func() error { return vsock.ErrRefused }}
		vm := New(Config{
			Engine: &engine{}, Maker: func() (graft.SocketMaker, error) { return maker{}, nil },
			Covers: func(at netip.AddrPort) bool { return at.Addr().IsLoopback() }, Log: slog.New(slog.DiscardHandler),
		}, g)
		ours, theirs := net.Pipe()
		s := &stream{vm: vm, conn: theirs, slots: make(chan struct{}, requestsMax), alive: map[uint32]chan bool{}, mine: map[uint32]*handle{}}
		go func() { _, _ = io.Copy(io.Discard, ours) }()
		go func() {
			_, _ = ours.Write(b)
			ours.Close()
		}()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = s.serve()
		}()
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
		defer cancel()
		select {
		case <-ended:
		case <-ctx.Done():
			t.Error("the stream does not end")
		}
		vm.Close()
	})
}
