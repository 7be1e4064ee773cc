package vm

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/outsource/wire"
)

// tsugiki is the command under test.
func tsugiki(t *testing.T) string {
	t.Helper()
	return filepath.Join(testkit.BuildTsugiki(t), "tsugiki")
}

// hostProcess is a process of tsugiki's that serves guests.
type hostProcess struct {
	t   *testing.T
	cmd *testkit.Cmd
	log bytes.Buffer
}

// serve starts tsugiki in a host's namespace. It ends before the test does, and then without an error.
func serve(t *testing.T, h *testkit.Namespace, args ...string) *hostProcess {
	t.Helper()
	p := &hostProcess{t: t, cmd: h.Command(context.Background(), tsugiki(t), args...)}
	p.cmd.Stderr = &p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.end(unix.SIGTERM) })
	return p
}

// end ends the process. Only SIGKILL is no regular end.
func (p *hostProcess) end(sig unix.Signal) {
	p.t.Helper()
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Signal(sig)
	err := p.cmd.Wait()
	p.cmd = nil
	if sig != unix.SIGKILL && err != nil || p.t.Failed() {
		p.t.Errorf("tsugiki: %v\n%s", err, &p.log)
	}
}

// attachFake attaches a guest with hybrid vsock, and returns its VMM's path. The guest is a fakeGuest.
func attachFake(t *testing.T, h *testkit.Namespace, name, dir string, flags ...string) (*hostProcess, string) {
	t.Helper()
	path := filepath.Join(dir, name)
	p := serve(t, h, slices.Concat([]string{
		"guest", "attach", "--vsock", "hybrid:" + path, "--name", fmt.Sprintf("%s%d", name, os.Getpid()), "--run-dir", filepath.Join(dir, "run"),
	}, flags)...)
	awaitSockets(t, path)
	return p, path
}

// awaitSockets waits until somebody serves a guest with hybrid vsock.
func awaitSockets(t *testing.T, path string) {
	t.Helper()
	testkit.Eventually(t, func() error {
		c, err := net.Dial("unix", fmt.Sprintf("%s_%d", path, wire.ControlPort))
		if err == nil {
			c.Close()
		}
		return err
	})
}

// fakeGuest is a VMM with hybrid vsock and a guest's supervisor in one. It says what a test wants.
type fakeGuest struct {
	t        *testing.T
	path     string
	listener *net.UnixListener
	dialed   chan dialed
	control  net.Conn
	ended    chan struct{} // closed when the control stream has ended

	mu      sync.Mutex // guards what follows
	replies map[uint32]chan *wire.Message
	last    uint32
	port    uint32 // of the host, that the VMM has given last
}

// dialed is a connection that the host has opened.
type dialed struct {
	*net.UnixConn
	to, port uint32
}

func newFake(t *testing.T, path string) *fakeGuest {
	t.Helper()
	g := &fakeGuest{t: t, path: path, dialed: make(chan dialed, 16), port: 1 << 30}
	var err error
	if g.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.listener.Close() })
	go g.accept()
	g.connectControl()
	return g
}

// connectControl opens a control stream.
func (g *fakeGuest) connectControl() {
	g.t.Helper()
	g.control = g.open(wire.ControlPort)
	g.mu.Lock()
	g.replies, g.ended = map[uint32]chan *wire.Message{}, make(chan struct{})
	g.mu.Unlock()
	go g.read(g.control, g.replies, g.ended)
	if hello := g.ask(&wire.Message{Op: wire.Hello, Number: wire.Version}); hello.Flags&wire.FlagShared == 0 {
		g.t.Fatalf("hello: %+v", hello)
	}
}

// read takes replies. All handles have a program.
func (g *fakeGuest) read(c net.Conn, replies map[uint32]chan *wire.Message, ended chan struct{}) {
	defer close(ended)
	for {
		m, err := wire.Read(c)
		if err != nil {
			return
		}
		if m.Flags&wire.FlagReply == 0 {
			m.Flags |= wire.FlagReply
			if b, err := m.Append(nil); err == nil {
				_, _ = c.Write(b)
			}
			continue
		}
		g.mu.Lock()
		reply := replies[m.ID]
		g.mu.Unlock()
		reply <- m
	}
}

func (g *fakeGuest) open(port uint32) net.Conn {
	g.t.Helper()
	c, err := net.Dial("unix", fmt.Sprintf("%s_%d", g.path, port))
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { c.Close() })
	return c
}

func (g *fakeGuest) accept() {
	for {
		c, err := g.listener.AcceptUnix()
		if err != nil {
			return
		}
		line, err := bufio.NewReaderSize(c, 16).ReadString('\n')
		var to uint32
		if err == nil {
			_, err = fmt.Sscanf(line, "CONNECT %d\n", &to)
		}
		if err != nil {
			c.Close()
			continue
		}
		g.mu.Lock()
		g.port++
		port := g.port
		g.mu.Unlock()
		if _, err := fmt.Fprintf(c, "OK %d\n", port); err != nil {
			c.Close()
			continue
		}
		g.dialed <- dialed{c, to, port}
	}
}

func (g *fakeGuest) ask(m *wire.Message) *wire.Message {
	g.t.Helper()
	reply := make(chan *wire.Message, 1)
	g.mu.Lock()
	g.last++
	m.ID = g.last
	g.replies[m.ID] = reply
	g.mu.Unlock()
	b, err := m.Append(nil)
	if err == nil {
		_, err = g.control.Write(b)
	}
	if err != nil {
		g.t.Fatal(err)
	}
	select {
	case got := <-reply:
		return got
	case <-g.ended:
		g.t.Fatalf("the host has ended the control stream at %+v", m)
	case <-time.After(testkit.Patience):
		g.t.Fatalf("no reply to %+v", m)
	}
	return nil
}

// connect connects to an address. The connection is nil if that fails.
func (g *fakeGuest) connect(to netip.AddrPort) (net.Conn, unix.Errno) {
	g.t.Helper()
	m := g.ask(&wire.Message{Op: wire.Connect, Type: unix.SOCK_STREAM, Name: to})
	if errno := unix.Errno(m.Errno); errno != 0 && errno != unix.EINPROGRESS {
		return nil, errno
	}
	c := g.open(wire.DataPort(0))
	preamble := wire.Preamble(m.Handle)
	if _, err := c.Write(preamble[:]); err != nil {
		g.t.Fatal(err)
	}
	if err := c.SetReadDeadline(time.Now().Add(testkit.Patience)); err != nil {
		g.t.Fatal(err)
	}
	var got [8]byte
	if _, err := io.ReadFull(c, got[:]); err != nil {
		return nil, unix.Errno(g.ask(&wire.Message{Op: wire.Names, Handle: m.Handle}).Errno)
	}
	return c, 0
}

// bind binds a server. local says that no rule covers the address.
func (g *fakeGuest) bind(at string) (handle uint32, name netip.AddrPort, local bool, errno unix.Errno) {
	g.t.Helper()
	m := g.ask(&wire.Message{
		Op: wire.Bind, Type: unix.SOCK_STREAM, Name: netip.MustParseAddrPort(at),
		Options: []wire.Option{{Level: unix.SOL_SOCKET, Name: unix.SO_REUSEADDR, Value: []byte{1, 0, 0, 0}}},
	})
	return m.Handle, m.Name, m.Flags&wire.FlagLocal != 0, unix.Errno(m.Errno)
}

// listen binds a server, which must be covered, and has the host listen.
func (g *fakeGuest) listen(at string) (handle uint32) {
	g.t.Helper()
	handle, _, local, errno := g.bind(at)
	if local || errno != 0 {
		g.t.Fatalf("bind %s: local %v, %v", at, local, errno)
	}
	if m := g.ask(&wire.Message{Op: wire.Listen, Handle: handle, Number: 16}); m.Errno != 0 {
		g.t.Fatalf("listen: %v", unix.Errno(m.Errno))
	}
	return handle
}

// next returns the next connection of a server.
func (g *fakeGuest) next(handle uint32) dialed {
	g.t.Helper()
	select {
	case c := <-g.dialed:
		g.t.Cleanup(func() { c.Close() })
		if c.to != wire.DataPort(handle) {
			g.t.Fatalf("the host connects to port %#x, and not to that of handle %d", c.to, handle)
		}
		return c
	case <-time.After(testkit.Patience):
		g.t.Fatal("the host opens no connection")
		return dialed{}
	}
}

// echoes serves an echo in the remote namespace.
func echoes(t *testing.T, top *testkit.Topology) netip.AddrPort {
	t.Helper()
	at := netip.AddrPortFrom(testkit.RemoteAddr4, echoPort)
	echoServer(t, top.Remote, at)
	return at
}

// works makes an echo through a connection to the echo server.
func works(c net.Conn) error {
	if _, err := io.WriteString(c, "all\nhello"); err != nil {
		return err
	}
	b := make([]byte, 5)
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "hello" {
		return fmt.Errorf("%q: %w", b, err)
	}
	return nil
}

// reach connects from the remote namespace.
func reach(top *testkit.Topology, at string) (c net.Conn, err error) {
	err = top.Remote.Do(func() error {
		c, err = net.DialTimeout("tcp", at, testkit.Patience)
		return err
	})
	return c, err
}
