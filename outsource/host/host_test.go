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
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/outsource/vsock"
	"github.com/tsugiki/tsugiki/outsource/wire"
)

func listen(t *testing.T) (net.Listener, netip.AddrPort) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, l.Addr().(*net.TCPAddr).AddrPort()
}

// refusing returns a port of the loopback that refuses what comes. A socket of the test keeps the port, so that
// no other socket gets it: one of TCP that does not listen, or one of UDP that is connected to another port.
func refusing(t *testing.T, typ int) netip.AddrPort {
	t.Helper()
	loopback := [4]byte{127, 0, 0, 1}
	s, err := unix.Socket(unix.AF_INET, typ|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(s) })
	err = unix.Bind(s, &unix.SockaddrInet4{Addr: loopback})
	if typ == unix.SOCK_DGRAM {
		err = errors.Join(err, unix.Connect(s, &unix.SockaddrInet4{Addr: loopback, Port: 1}))
	}
	if err != nil {
		t.Fatal(err)
	}
	at, err := unix.Getsockname(s)
	if err != nil {
		t.Fatal(err)
	}
	return nameOf(at)
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
	at := refusing(t, unix.SOCK_STREAM)
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

// TestSharedPort has two servers share a port (SO_REUSEADDR), of which one listens. The other one can when that
// has gone, without a word.
func TestSharedPort(t *testing.T) {
	r := newRig(t)
	share := []wire.Option{{Level: unix.SOL_SOCKET, Name: unix.SO_REUSEADDR, Value: []byte{1, 0, 0, 0}}}
	bind := func(at netip.AddrPort) *wire.Message {
		m := r.ask(&wire.Message{Op: wire.Bind, Type: unix.SOCK_STREAM, Name: at, Options: share})
		r.want(m, 0)
		return m
	}
	first := bind(netip.MustParseAddrPort("127.0.0.1:0"))
	second := bind(first.Name)
	listen := func(m *wire.Message) *wire.Message {
		return r.ask(&wire.Message{Op: wire.Listen, Handle: m.Handle, Number: 5})
	}
	r.want(listen(first), 0)
	r.want(listen(second), unix.EADDRINUSE)
	r.alive = func(handle uint32) bool { return handle != first.Handle }
	r.want(listen(second), 0)
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
	r.alive = func(uint32) bool { return false }
	r.guest.answer = func() error { return vsock.ErrRefused }
	r.want(r.ask(&wire.Message{Op: wire.Listen, Handle: m.Handle, Number: 5}), 0)
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
		{Op: wire.Connect, Type: 1, Name: netip.MustParseAddrPort("127.0.0.1:1")},
		{Op: wire.Bind, Type: 1, Name: netip.MustParseAddrPort("127.0.0.1:0")},
		{Op: wire.Listen, Handle: 1},
		{Op: wire.Alive, Flags: wire.FlagReply},
		{Op: wire.Set, Handle: 1, Options: []wire.Option{{Level: 6, Name: 1}}},
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
			Covers: func(_ int, at netip.AddrPort) bool { return at.Addr().IsLoopback() }, Log: slog.New(slog.DiscardHandler),
		}, g)
		ours, theirs := net.Pipe()
		s := newStream(vm, theirs)
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
