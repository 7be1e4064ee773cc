package host

import (
	"bufio"
	"bytes"
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

// frames is the guest's end of the connection for datagrams.
type frames struct {
	r    *rig
	conn net.Conn
	in   *bufio.Reader
}

func (r *rig) frames() *frames {
	r.Helper()
	accepted := make(chan vsock.Socket, 1)
	r.vm.Request(vsock.NewRequest(vsock.Stream, 1, wire.DatagramPort, func(s vsock.Socket) { accepted <- s }, func() { r.Error("refused") }))
	s := <-accepted
	file := os.NewFile(uintptr(s.File), "frames")
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(testkit.Patience)); err != nil {
		r.Fatal(err)
	}
	return &frames{r, conn, wire.NewDatagramReader(conn)}
}

func (f *frames) send(m wire.Datagram) {
	f.r.Helper()
	b, err := m.Append(nil)
	if err == nil {
		_, err = f.conn.Write(b)
	}
	if err != nil {
		f.r.Fatal(err)
	}
}

func (f *frames) receive() wire.Datagram {
	f.r.Helper()
	m, err := wire.ReadDatagram(f.in)
	if err != nil {
		f.r.Fatal(err)
	}
	return m
}

// udpServer is another host, which answers with what it hears.
func udpServer(t *testing.T, answer func(netip.AddrPort, []byte) []byte) netip.AddrPort {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	go testkit.AnswerDatagrams(c, answer)
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

func tellName(from netip.AddrPort, _ []byte) []byte { return []byte(from.String()) }

func TestDatagrams(t *testing.T) {
	r := newRig(t)
	f := r.frames()
	at := udpServer(t, testkit.Echo)
	for _, size := range []int{0, 1, 1472, 65507} {
		want := bytes.Repeat([]byte("d"), size)
		f.send(wire.Datagram{Port: 4000, Peer: at, Bytes: want})
		if m := f.receive(); m.Port != 4000 || m.Peer != at || m.Errno != 0 || !bytes.Equal(m.Bytes, want) {
			t.Errorf("of %d bytes came back %d from %s for port %d, errno %d", size, len(m.Bytes), m.Peer, m.Port, m.Errno)
		}
	}
	f.send(wire.Datagram{Port: 4000, Peer: at, Bytes: make([]byte, 65508)})
	if m := f.receive(); unix.Errno(m.Errno) != unix.EMSGSIZE {
		t.Errorf("a datagram that is too long: %v", unix.Errno(m.Errno))
	}
	f.send(wire.Datagram{Port: 4001, Peer: netip.MustParseAddrPort("192.0.2.1:9"), Bytes: []byte("x")})
	if m := f.receive(); unix.Errno(m.Errno) != unix.ENETUNREACH || m.Port != 4001 {
		t.Errorf("a datagram to where no rule leads: %+v", m)
	}
}

// TestDatagramErrors has nobody at a port. The error is that datagram's, and not that of the next one to
// another peer.
func TestDatagramErrors(t *testing.T) {
	r := newRig(t)
	f := r.frames()
	at := udpServer(t, testkit.Echo)
	closed := refusing(t, unix.SOCK_DGRAM)
	for range 20 {
		f.send(wire.Datagram{Port: 4000, Peer: closed, Bytes: []byte("x")})
		f.send(wire.Datagram{Port: 4000, Peer: at, Bytes: []byte("y")})
		errors, answers := 0, 0
		for errors+answers < 2 {
			switch m := f.receive(); {
			case m.Peer == closed && unix.Errno(m.Errno) == unix.ECONNREFUSED:
				errors++
			case m.Peer == at && string(m.Bytes) == "y":
				answers++
			default:
				t.Fatalf("%+v", m)
			}
		}
		if errors != 1 {
			t.Fatalf("%d errors and %d answers", errors, answers)
		}
	}
}

// TestDatagramNames asks by which name a peer sees a port.
func TestDatagramNames(t *testing.T) {
	r := newRig(t)
	f := r.frames()
	at := udpServer(t, tellName)
	m := r.ask(&wire.Message{Op: wire.Connect, Type: unix.SOCK_DGRAM, Number: 4000, Name: at})
	r.want(m, 0)
	f.send(wire.Datagram{Port: 4000, Peer: at})
	if seen := f.receive(); string(seen.Bytes) != m.Name.String() {
		t.Errorf("the name is %s, and the peer sees %s", m.Name, seen.Bytes)
	}
	r.want(r.ask(&wire.Message{Op: wire.Connect, Type: unix.SOCK_DGRAM, Number: 4000, Name: netip.MustParseAddrPort("192.0.2.1:9")}), unix.ENETUNREACH)
	for _, bad := range []wire.Message{
		{Op: wire.Connect, Number: 4000}, {Op: wire.Connect, Number: 1 << 16, Name: at}, {Op: wire.Bind},
	} {
		bad.Type = unix.SOCK_DGRAM
		r.want(r.ask(&bad), unix.EINVAL)
	}
	r.want(r.ask(&wire.Message{Op: wire.Listen, Type: unix.SOCK_DGRAM, Name: at}), unix.EOPNOTSUPP)
}

// freePort returns a port of the loopback that nobody has.
func freePort(t *testing.T) netip.AddrPort {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

func (r *rig) bindDatagrams(at netip.AddrPort) *wire.Message {
	r.Helper()
	return r.ask(&wire.Message{Op: wire.Bind, Type: unix.SOCK_DGRAM, Name: at})
}

// TestDatagramServer has a server whose bind a rule covers. It ends when the guest has nobody there, and
// the supervisor agrees.
func TestDatagramServer(t *testing.T) {
	r := newRig(t)
	f := r.frames()
	if m := r.bindDatagrams(netip.MustParseAddrPort("0.0.0.0:53")); m.Flags&wire.FlagLocal == 0 {
		t.Errorf("no rule covers it, but: %+v", m)
	}
	at := freePort(t)
	for range 2 { // programs of the guest share the port, if its kernel lets them
		r.want(r.bindDatagrams(at), 0)
	}
	c, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(at))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(testkit.Patience)); err != nil {
		t.Fatal(err)
	}
	ask := func() wire.Datagram {
		if _, err := c.Write([]byte("question")); err != nil {
			t.Fatal(err)
		}
		return f.receive()
	}
	m := ask()
	if m.Port != at.Port() || m.Peer.String() != c.LocalAddr().String() || string(m.Bytes) != "question" {
		t.Fatalf("%+v", m)
	}
	f.send(wire.Datagram{Port: m.Port, Peer: m.Peer, Bytes: []byte("answer")})
	b := make([]byte, 100)
	if n, err := c.Read(b); err != nil || string(b[:n]) != "answer" {
		t.Fatalf("%q, %v", b[:n], err)
	}
	refused := wire.Datagram{Errno: uint16(unix.ECONNREFUSED), Port: m.Port, Peer: m.Peer}
	f.send(refused)                      // by a guest that errs: the supervisor says that the program is there
	testkit.Eventually(t, func() error { // the question is answered
		d := &r.vm.datagrams
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.ports[portKey{number: m.Port}].asking.Load() {
			return errors.New("the supervisor is being asked")
		}
		return nil
	})
	ask()
	r.gone.Store(true)
	testkit.Eventually(t, func() error {
		f.send(refused) // one that comes while the supervisor is being asked about the first has no effect
		if _, err := c.Write([]byte("question")); errors.Is(err, unix.ECONNREFUSED) {
			return nil
		}
		return errors.New("the server is there")
	})
}

// TestManyPorts floods the host with ports of the guest.
func TestManyPorts(t *testing.T) {
	r := newRig(t)
	f := r.frames()
	at := udpServer(t, testkit.Echo)
	server := freePort(t)
	r.want(r.bindDatagrams(server), 0)
	for i := range portsMax + 100 {
		f.send(wire.Datagram{Port: uint16(10000 + i), Peer: at})
		f.receive()
	}
	d := &r.vm.datagrams
	d.mu.Lock()
	count, kept := len(d.ports), d.ports[portKey{number: server.Port()}]
	d.mu.Unlock()
	if count != portsMax || kept == nil {
		t.Errorf("%d ports, server %v", count, kept)
	}
}

// TestIdlePorts lets time pass for ports.
func TestIdlePorts(t *testing.T) {
	r := newRig(t)
	f := r.frames()
	at := udpServer(t, testkit.Echo)
	server := freePort(t)
	r.want(r.bindDatagrams(server), 0)
	f.send(wire.Datagram{Port: 4000, Peer: at})
	f.receive()
	d := &r.vm.datagrams
	ports := func() string {
		d.mu.Lock()
		defer d.mu.Unlock()
		return fmt.Sprint(d.ports[portKey{number: 4000}] != nil, d.ports[portKey{number: server.Port()}] != nil)
	}
	d.expire(time.Now().Add(portIdle / 2))
	if got := ports(); got != "true true" {
		t.Errorf("while they are used: %s", got)
	}
	d.expire(time.Now().Add(2 * portIdle))
	if got := ports(); got != "false true" {
		t.Errorf("when they are idle: %s", got)
	}
	r.gone.Store(true)
	testkit.Eventually(t, func() error {
		d.expire(time.Now().Add(2 * portIdle))
		if got := ports(); got != "false false" {
			return errors.New(got)
		}
		return nil
	})
	r.want(r.bindDatagrams(server), 0)
	r.conn.Close() // the supervisor has ended
	testkit.Eventually(t, func() error {
		if got := ports(); got != "false false" {
			return errors.New(got)
		}
		return nil
	})
}
