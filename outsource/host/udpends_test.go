package host

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/outsource/vsock"
	"github.com/tsugiki/tsugiki/outsource/wire"
)

// TestServerOfTwoStreams has two programs of different supervisors bind a port, of which the guest's kernel lets
// one. The end of the other one's supervisor is not the end of the server.
func TestServerOfTwoStreams(t *testing.T) {
	r := newRig(t)
	f := r.frames()
	at := freePort(t)
	r.want(r.bindDatagrams(at), 0)
	second := r.stream()
	if _, err := r.vm.datagrams.server(at, second); err != nil {
		t.Fatal(err)
	}
	second.end()
	c, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(at))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("question")); err != nil {
		t.Fatal(err)
	}
	if m := f.receive(); m.Port != at.Port() || string(m.Bytes) != "question" {
		t.Fatalf("%+v", m)
	}
	r.conn.Close()
	testkit.Eventually(t, func() error {
		if _, err := c.Write([]byte("question")); errors.Is(err, unix.ECONNREFUSED) {
			return nil
		}
		return errors.New("the server is there")
	})
}

// TestBindWhileAsked has a program bind a port again when the supervisor has found that nobody has it, before
// the host has heard so. The server stays.
func TestBindWhileAsked(t *testing.T) {
	r := newRig(t)
	r.questions = make(chan *wire.Message, 1)
	f := r.frames()
	at := freePort(t)
	r.want(r.bindDatagrams(at), 0)
	d := &r.vm.datagrams
	d.mu.Lock()
	p := d.ports[portKey{number: at.Port()}]
	d.mu.Unlock()
	f.send(wire.Datagram{Errno: uint16(unix.ECONNREFUSED), Port: at.Port(), Peer: at})
	question := <-r.questions
	r.want(r.bindDatagrams(at), 0)
	r.write(&wire.Message{Op: question.Op, Flags: wire.FlagReply, ID: question.ID, Errno: uint32(unix.ENOENT)})
	testkit.Eventually(t, func() error {
		if p.asking.Load() {
			return errors.New("the host has not heard the answer")
		}
		return nil
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ports[p.key] != p {
		t.Error("the server has ended")
	}
}

// TestNoConnectionMeanwhile has a datagram for a server come while no supervisor carries datagrams. The next one
// gets it.
func TestNoConnectionMeanwhile(t *testing.T) {
	r := newRig(t)
	at := freePort(t)
	r.want(r.bindDatagrams(at), 0)
	c, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(at))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for i := range 50 { // the receiver is not as fast as the next connection each time
		want := fmt.Sprint("before connection ", i)
		if _, err := c.Write([]byte(want)); err != nil {
			t.Fatal(err)
		}
		f := r.frames()
		if m := f.receive(); m.Port != at.Port() || string(m.Bytes) != want {
			t.Fatalf("%+v", m)
		}
		f.conn.Close()
		testkit.Eventually(t, func() error {
			r.vm.datagrams.mu.Lock()
			defer r.vm.datagrams.mu.Unlock()
			if r.vm.datagrams.conn != nil {
				return errors.New("the connection has not ended")
			}
			return nil
		})
	}
}

// TestServerOfEndedStream has a bind that is answered after the end of its supervisor.
func TestServerOfEndedStream(t *testing.T) {
	r := newRig(t)
	ended := r.stream()
	ended.end()
	at := freePort(t)
	d := &r.vm.datagrams
	if _, err := d.server(at, ended); !errors.Is(err, unix.EBADF) {
		t.Errorf("bind: %v", err)
	}
	d.mu.Lock()
	count := len(d.ports)
	d.mu.Unlock()
	if count != 0 {
		t.Errorf("%d ports", count)
	}
	r.want(r.bindDatagrams(at), 0) // it waits for the end of the other
	if _, err := d.server(at, ended); !errors.Is(err, unix.EBADF) {
		t.Errorf("bind of a server that is there: %v", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.ports[portKey{number: at.Port()}]; p == nil || len(p.streams) != 1 {
		t.Errorf("server %+v", p)
	}
}

// TestManyDatagramConnections has a guest with as many streams as it may have.
func TestManyDatagramConnections(t *testing.T) {
	r := newRig(t)
	for range streamsMax {
		if !r.vm.enter() {
			t.Fatal("no room")
		}
	}
	refused := make(chan struct{})
	request := func() {
		r.vm.Request(vsock.NewRequest(vsock.Stream, 1, wire.DatagramPort, func(vsock.Socket) { t.Error("accepted") }, func() { close(refused) }))
	}
	request()
	<-refused
	r.vm.leave()
	f := r.frames()
	refused = make(chan struct{})
	request()
	<-refused
	f.conn.Close()
	testkit.Eventually(t, func() error {
		if !r.vm.enter() {
			return errors.New("the connection has ended, but counts")
		}
		return nil
	})
}

// stuffed returns a port without a receiver, in whose queue are datagrams, with so little room that the kernel
// queues no errors.
func (r *rig) stuffed(datagrams int) *port {
	r.Helper()
	sock, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		r.Fatal(err)
	}
	p := &port{key: portKey{number: 4000}, file: os.NewFile(uintptr(sock), "stuffed")}
	r.Cleanup(func() { p.file.Close() })
	if p.raw, err = p.file.SyscallConn(); err != nil {
		r.Fatal(err)
	}
	err = errors.Join(unix.Bind(sock, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.SetsockoptInt(sock, unix.SOL_IP, unix.IP_RECVERR, 1))
	if err != nil {
		r.Fatal(err)
	}
	name, err := unix.Getsockname(sock)
	if err != nil {
		r.Fatal(err)
	}
	c, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(nameOf(name)))
	if err != nil {
		r.Fatal(err)
	}
	defer c.Close()
	for range datagrams {
		if _, err := c.Write(make([]byte, 1000)); err != nil {
			r.Fatal(err)
		}
	}
	if err := unix.SetsockoptInt(sock, unix.SOL_SOCKET, unix.SO_RCVBUF, 1); err != nil {
		r.Fatal(err)
	}
	return p
}

// fail has a datagram of a port find nobody. The kernel has an error then, which no queue has.
func (r *rig) fail(p *port) {
	r.Helper()
	if err := r.vm.datagrams.send(p, wire.Datagram{Peer: refusing(r.T, unix.SOCK_DGRAM), Bytes: []byte("x")}); err != nil {
		r.Fatal(err)
	}
}

// TestErrorOfAnother has an error that the kernel could not queue. The next datagram goes to another peer, which
// gets it, and is not said to be gone.
func TestErrorOfAnother(t *testing.T) {
	r := newRig(t)
	heard := make(chan string, 1)
	at := udpServer(t, func(_ netip.AddrPort, b []byte) []byte {
		heard <- string(b)
		return nil
	})
	p := r.stuffed(10)
	r.fail(p)
	if err := r.vm.datagrams.send(p, wire.Datagram{Peer: at, Bytes: []byte("hello")}); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-heard:
		if got != "hello" {
			t.Errorf("%q", got)
		}
	case <-time.After(testkit.Patience):
		t.Error("the datagram is lost")
	}
}

// TestReceiveAfterError has such an error come while datagrams wait. They are received without another event.
func TestReceiveAfterError(t *testing.T) {
	r := newRig(t)
	f := r.frames()
	p := r.stuffed(10)
	r.fail(p)
	err := p.raw.Control(func(fd uintptr) {
		for r.vm.datagrams.batch(p, int(fd)) {
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if m := f.receive(); len(m.Bytes) != 1000 {
			t.Fatalf("datagram %d: %+v", i, m)
		}
	}
}

// TestNoDatagramReader has a guest that reads no frames: other requests are answered, and the end comes.
func TestNoDatagramReader(t *testing.T) {
	r := newRig(t)
	f := r.frames()
	at := udpServer(t, testkit.Echo)
	f.send(wire.Datagram{Port: 4000, Peer: at})
	f.receive()
	d := &r.vm.datagrams
	d.mu.Lock()
	to := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), d.ports[portKey{number: 4000}].own)
	d.mu.Unlock()
	c, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// Nobody makes room in the connection to the guest, so who writes there while it is full waits.
	d.mu.Lock()
	raw, err := d.conn.(*net.UnixConn).SyscallConn()
	d.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, func() error {
		if _, err := c.Write(make([]byte, 60000)); err != nil {
			t.Fatal(err)
		}
		if d.out.TryLock() {
			d.out.Unlock()
			return errors.New("nobody writes to the guest")
		}
		var full error
		err := raw.Control(func(fd uintptr) { _, full = unix.SendmsgN(int(fd), []byte{0}, nil, nil, unix.MSG_DONTWAIT) })
		if err != nil || !errors.Is(full, unix.EAGAIN) {
			return errors.Join(errors.New("the connection to the guest has room"), err)
		}
		return nil
	})
	r.want(r.ask(&wire.Message{Op: wire.Connect, Type: unix.SOCK_DGRAM, Number: 4001, Name: at}), 0)
}
