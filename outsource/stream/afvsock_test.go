package stream

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/outsource/vsock"
	"github.com/tsugiki/tsugiki/outsource/wire"
)

// local is the context id of the machine itself (VMADDR_CID_LOCAL), where the kernel has vsock_loopback.
const local = unix.VMADDR_CID_LOCAL

// vsocks has AF_VSOCK sockets on the loopback, and serves a guest there.
func vsocks(t *testing.T, cid uint32) *rig {
	t.Helper()
	if sock, err := bind(local, unix.VMADDR_PORT_ANY); err != nil {
		t.Skip("needs AF_VSOCK on the loopback (module vsock_loopback)")
	} else {
		unix.Close(sock)
	}
	r := prepare(t)
	s, err := listen(local)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if r.guest, err = s.Guest(cid, r.config, func(*Guest) vsock.Handler { return r }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.end)
	if _, err := s.Guest(cid, r.config, func(*Guest) vsock.Handler { return r }); !errors.Is(err, os.ErrExist) {
		t.Errorf("another guest with the same context id: %v", err)
	}
	return r
}

// guestSocket is an AF_VSOCK socket of the guest's.
func guestSocket(t *testing.T, port uint32) int {
	t.Helper()
	sock, err := bind(local, port)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(sock, false); err != nil {
		t.Fatal(err)
	}
	patience := unix.NsecToTimeval(testkit.Patience.Nanoseconds())
	for _, name := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(sock, unix.SOL_SOCKET, name, &patience); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { unix.Close(sock) })
	return sock
}

type vsockConn struct{ *os.File }

func (c vsockConn) CloseWrite() error         { return unix.Shutdown(int(c.Fd()), unix.SHUT_WR) }
func (vsockConn) LocalAddr() net.Addr         { return nil }
func (vsockConn) RemoteAddr() net.Addr        { return nil }
func (vsockConn) SetDeadline(time.Time) error { return nil }

func TestVsockData(t *testing.T) {
	r := vsocks(t, local)
	sock := guestSocket(t, wire.DataPort(7))
	if err := unix.Connect(sock, &unix.SockaddrVM{CID: local, Port: wire.DataPort(0)}); err != nil {
		t.Fatal(err)
	}
	c := vsockConn{os.NewFile(uintptr(sock), "guest")}
	preamble := wire.Preamble(7)
	if _, err := c.Write(preamble[:]); err != nil {
		t.Fatal(err)
	}
	s, peer := tcp(t)
	r.request().Accept(s)
	var got [8]byte
	if _, err := io.ReadFull(c, got[:]); err != nil || got != preamble {
		t.Fatalf("% x, %v", got, err)
	}
	if err := exchange(c, peer, 8<<20); err != nil {
		t.Error(err)
	}
	r.closed()
}

func TestVsockDial(t *testing.T) {
	r := vsocks(t, local)
	s, peer := tcp(t)
	if err := r.dial(wire.DataPort(8), s); !errors.Is(err, vsock.ErrRefused) {
		t.Errorf("nobody listens: %v", err)
	}
	sock := guestSocket(t, wire.DataPort(8))
	if err := unix.Listen(sock, 2); err != nil {
		t.Fatal(err)
	}
	// Two at once, as two guests have them, whose handles have the same numbers.
	other, otherPeer := tcp(t)
	ends := map[uint32]vsockConn{}
	var ports [2]uint32
	for i, s := range []vsock.Socket{s, other} {
		s.Named = func(port uint32) { ports[i] = port }
		if err := r.dial(wire.DataPort(8), s); err != nil {
			t.Fatal(err)
		}
		c, from, err := unix.Accept(sock)
		if err != nil {
			t.Fatal(err)
		}
		vm, is := from.(*unix.SockaddrVM)
		if !is || vm.Port != ports[i] || vm.Port&^wire.HandleMax == wire.DataPort(0) {
			t.Fatalf("the guest sees %+v, and the host port %d", from, ports[i])
		}
		ends[vm.Port] = vsockConn{os.NewFile(uintptr(c), "guest")}
	}
	for i, peer := range []*net.TCPConn{peer, otherPeer} {
		if err := exchange(ends[ports[i]], peer, 1<<20); err != nil {
			t.Error(err)
		}
	}
	r.closed()
}

// TestVsockOfAnother has a context that is no guest's connect. It is closed.
func TestVsockOfAnother(t *testing.T) {
	vsocks(t, 77)
	sock := guestSocket(t, wire.DataPort(7))
	if err := unix.Connect(sock, &unix.SockaddrVM{CID: local, Port: wire.ControlPort}); err != nil {
		t.Fatal(err)
	}
	if n, err := unix.Read(sock, make([]byte, 1)); n > 0 || err != nil && !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("%d bytes, %v", n, err)
	}
}
