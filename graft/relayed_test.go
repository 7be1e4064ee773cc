package graft

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
)

// relayPort is the port of the gateway in these tests, and of its server.
const relayPort = 2121

var (
	virtual4 = netip.MustParseAddr("198.18.0.1")
	own4     = netip.MustParseAddr("192.0.0.2")
)

// fakeGateway carries bytes as they are.
type fakeGateway struct{ began chan Relayed }

func (g *fakeGateway) Serves(port uint16) bool { return port == relayPort || port == relayPort+1 }

func (g *fakeGateway) Relay(c Relayed) {
	g.began <- c
	done := make(chan struct{})
	go func() {
		_, _ = io.Copy(c.Peer, c.Program) // what is lost, the test misses
		c.Peer.Close()
		close(done)
	}()
	_, _ = io.Copy(c.Program, c.Peer)
	c.Program.Close()
	<-done
}

func (g *fakeGateway) Full(client net.Conn, _ uint16) {
	_, _ = io.WriteString(client, "full")
	client.Close()
}

// newRelaying is a container with a gateway. host6 is known as virtual4.
func newRelaying(t *testing.T, host *fakePlace) (*world, *fakeGateway) {
	t.Helper()
	w, g := newUntrapped(t, host, "-e", "2001:db8::/32=::"), &fakeGateway{make(chan Relayed, 1)}
	known := fakeTranslator{virtual4: host6, netip.MustParseAddr("198.18.0.3"): netip.MustParseAddr("2001:db8:3::1")}
	w.Translation = Translation{Translator: known, Own: own4, Gateway: g}
	w.enforcer.standIns = map[uint64][3]netip.AddrPort{}
	t.Cleanup(w.CloseRelays)
	return w, g
}

// listen makes a listener in a place.
func listen(t *testing.T, at *fakePlace, addr string) (l *net.TCPListener) {
	t.Helper()
	err := at.Do(func() (err error) {
		l, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.MustParseAddrPort(addr)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// await waits until a connect of a file has ended, and returns how.
func await(t *testing.T, file int) error {
	t.Helper()
	copied, err := unix.Dup(file)
	if err == nil {
		err = unix.SetNonblock(copied, true)
	}
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(copied), "")
	defer f.Close()
	return awaitConnect(f)
}

// A connect to a port of the gateway ends as the connect to the peer ends. The program's own socket
// is connected then, and the gateway carries what is sent.
func TestConnectRelayed(t *testing.T) {
	host := newPlace(t, host6)
	l := listen(t, host, netip.AddrPortFrom(host6, relayPort).String())
	for name, tt := range map[string]struct {
		to       string
		nonblock bool
		full     bool
		want     Answer
		ends     error
	}{
		"waits":           {to: "198.18.0.1:2121"},
		"does not wait":   {to: "198.18.0.1:2121", nonblock: true, want: fail(unix.EINPROGRESS)},
		"refused":         {to: "198.18.0.1:2122", nonblock: true, want: fail(unix.EINPROGRESS), ends: unix.ECONNREFUSED},
		"refused at once": {to: "198.18.0.3:2121", want: fail(unix.ENETUNREACH)},
		"no room":         {to: "198.18.0.1:2121", full: true, want: fail(unix.ENOBUFS)},
	} {
		t.Run(name, func(t *testing.T) {
			w, g := newRelaying(t, host)
			for tt.full && len(w.relays.room) < cap(w.relays.room) {
				w.relays.room <- struct{}{}
			}
			number := w.socket(host, ip4, tcp)
			file := w.program.files[number]
			if err := unix.SetNonblock(file, tt.nonblock); err != nil {
				t.Fatal(err)
			}
			answer, err := w.Connect(w.program, number, addr(tt.to))
			if err != nil || answer != tt.want {
				t.Fatalf("%+v, %v, want %+v", answer, err, tt.want)
			}
			if answer.Action == Fail && answer.Errno != unix.EINPROGRESS {
				return
			}
			if flags, err := unix.FcntlInt(uintptr(file), unix.F_GETFL, 0); err != nil || (flags&unix.O_NONBLOCK != 0) != tt.nonblock {
				t.Errorf("its flags are %#x, %v", flags, err)
			}
			if err := await(t, file); !errors.Is(err, tt.ends) {
				t.Fatalf("the connect ends with %v, want %v", err, tt.ends)
			}
			if tt.ends != nil {
				return
			}
			c := <-g.began
			if c.ServerInside || c.Own != own4 || c.PeerAddr4 != addr(tt.to) || c.PeerAddr != netip.AddrPortFrom(host6, relayPort) {
				t.Errorf("it relays %+v", c)
			}
			noted := w.enforcer.standIns[w.enforcer.cookie(file)]
			if noted[1] != netip.AddrPortFrom(own4, 0) || noted[2] != addr(tt.to) {
				t.Errorf("its names are %v", noted)
			}
			server, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			checkCarries(t, file, server)
		})
	}
}

// checkCarries sends a word each way.
func checkCarries(t *testing.T, file int, peer net.Conn) {
	t.Helper()
	if err := unix.SetNonblock(file, false); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 16)
	if _, err := unix.Write(file, []byte("there")); err != nil {
		t.Fatal(err)
	}
	if n, err := peer.Read(buf); err != nil || string(buf[:n]) != "there" {
		t.Errorf("the peer reads %q, %v", buf[:n], err)
	}
	if _, err := io.WriteString(peer, "back"); err != nil {
		t.Fatal(err)
	}
	if n, err := unix.Read(file, buf); err != nil || string(buf[:n]) != "back" {
		t.Errorf("the program reads %q, %v", buf[:n], err)
	}
}

// A socket that waits fails with the errno of the peer's connect, and can connect again.
func TestRefuse(t *testing.T) {
	host := newPlace(t, host6)
	w, _ := newRelaying(t, host)
	k, err := w.makeSink()
	if err != nil {
		t.Fatal(err)
	}
	for errno, want := range map[unix.Errno]unix.Errno{
		unix.ECONNREFUSED: unix.ECONNREFUSED, unix.EHOSTUNREACH: unix.EHOSTUNREACH, unix.ENETUNREACH: unix.ENETUNREACH,
		unix.EACCES: unix.EHOSTUNREACH,
	} {
		file := w.program.files[w.socket(host, ip4, tcp)]
		waiting, err := w.wait(file, k, addr("198.18.0.1:21"))
		if err == nil {
			err = w.refuse(waiting, errno)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := await(t, file); !errors.Is(err, want) {
			t.Errorf("%v becomes %v, want %v", errno, err, want)
		}
		// Linux says of the first connect after a failed one that it was aborted (ECONNABORTED).
		if _, err := w.wait(file, k, addr("198.18.0.1:21")); err == nil {
			t.Error("a failed connect is forgotten")
		}
		if waiting, err = w.wait(file, k, addr("198.18.0.1:21")); err != nil {
			t.Fatal(err)
		}
		inside, err := w.meet(waiting)
		if err != nil {
			t.Fatal(err)
		}
		if err := await(t, file); err != nil {
			t.Errorf("the second connect fails with %v", err)
		}
		inside.Close()
	}
}

// A connection that a server has accepted goes by the gateway, with the server's own port in its name.
// Where there is no room, the client is told so.
func TestAcceptRelayed(t *testing.T) {
	host := newPlace(t, host6)
	w, g := newRelaying(t, host)
	l := listen(t, host, netip.AddrPortFrom(host6, relayPort).String())
	listener, err := inspect(w.program.files[w.socket(host, ip6, tcp)])
	if err != nil {
		t.Fatal(err)
	}
	dial := func() (client net.Conn, file int, peer netip.AddrPort) {
		t.Helper()
		err := host.Do(func() (err error) {
			client, err = net.Dial("tcp", l.Addr().String())
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		conn, err := l.AcceptTCP()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		f, err := conn.File()
		if err == nil {
			defer f.Close()
			file, err = unix.Dup(int(f.Fd()))
		}
		if err != nil {
			t.Fatal(err)
		}
		return client, file, client.LocalAddr().(*net.TCPAddr).AddrPort()
	}
	client, file, peer := dial()
	file, err = w.begin().acceptRelayed(listener, file, peer)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(file)
	if c := <-g.began; !c.ServerInside || c.PeerAddr != peer {
		t.Errorf("it relays %+v", c)
	}
	if noted := w.enforcer.standIns[w.enforcer.cookie(file)]; noted[1] != netip.AddrPortFrom(own4, relayPort) {
		t.Errorf("its names are %v", noted)
	}
	checkCarries(t, file, client)

	for len(w.relays.room) < cap(w.relays.room) {
		w.relays.room <- struct{}{}
	}
	client, file, peer = dial()
	if file, err := w.begin().acceptRelayed(listener, file, peer); file >= 0 || err != nil {
		t.Errorf("descriptor %d, %v", file, err)
	}
	if text, err := io.ReadAll(client); err != nil || string(text) != "full" {
		t.Errorf("the client reads %q, %v", text, err)
	}
}

// A server connects once to a port that a client has opened for it. Nobody else gets there, and only
// ports can be opened that the kernel has chosen for listeners of the container.
func TestExpect(t *testing.T) {
	other6 := netip.MustParseAddr("2001:db8:1::3")
	host := newPlace(t, host6, other6)
	w, _ := newRelaying(t, host)
	number := w.socket(host, ip4, tcp)
	program := w.program.files[number]
	if err := errors.Join(unix.Bind(program, sockaddr.Of(netip.AddrPortFrom(netip.IPv4Unspecified(), 0))), unix.Listen(program, 4)); err != nil {
		t.Fatal(err)
	}
	name, err := localName(program)
	if err != nil {
		t.Fatal(err)
	}
	s, _, err := host.ListenerAt(localhost4(name.Port()))
	if err != nil {
		t.Fatal(err)
	}
	w.enforcer.cgroup = s.Cgroup
	x := expectation{e: w.Engine, peer: host6, at: host6}
	refused := func(why string, port uint16) {
		t.Helper()
		if at, err := x.open(port); err == nil || !strings.Contains(err.Error(), errNoListener.Error()) {
			t.Errorf("%s: port %d is open at %v, %v", why, port, at, err)
		}
	}
	nobody := listen(t, host, "127.0.0.1:0")
	port := uint16(nobody.Addr().(*net.TCPAddr).Port)
	nobody.Close()
	refused("nobody listens", port)
	refused("no port of the kernel's choice", 6379)
	w.enforcer.private[[2]int{unix.IPPROTO_TCP, 6379}] = name.Port()
	refused("a private port", name.Port())
	clear(w.enforcer.private)
	cgroup := w.enforcer.cgroup
	w.enforcer.cgroup++
	refused("another container's", name.Port())
	w.enforcer.cgroup = cgroup

	at, err := x.open(name.Port())
	if err != nil {
		t.Fatal(err)
	}
	dial := func(from netip.Addr) (conn net.Conn, err error) {
		d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
		derr := host.Do(func() error {
			conn, err = d.Dial("tcp", at.String())
			return nil
		})
		return conn, errors.Join(err, derr)
	}
	stranger := make(chan error, 1)
	go func() {
		conn, err := dial(other6)
		if err == nil {
			conn.Close()
		}
		stranger <- err
	}()
	server, err := dial(host6)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	c, waits, answer, err := w.Accept(w.program, number)
	for waits && err == nil {
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(program), Events: unix.POLLIN}}, -1)
		c, waits, answer, err = w.Accept(w.program, number)
	}
	if err != nil || c == nil {
		t.Fatalf("connection %v, %+v, %v", c, answer, err)
	}
	defer unix.Close(c.File)
	checkCarries(t, c.File, server)
	if _, err := dial(host6); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("the server connects again: %v", err)
	}
	if err := <-stranger; !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("another host connects: %v", err)
	}
	x.end()
	if _, err := x.open(name.Port()); !errors.Is(err, errEnded) {
		t.Errorf("a port is opened after the end: %v", err)
	}
}

// A program may bind the container's own IPv4 address. No link of the host has it, so the socket is
// bound to the wildcard.
func TestBindOwnAddress(t *testing.T) {
	host := newPlace(t, host6)
	for _, typ := range []int{tcp, unix.SOCK_DGRAM} {
		for _, port := range []uint16{0, 5060} {
			w, _ := newRelaying(t, host)
			number := w.socket(host, ip4, typ)
			view := netip.AddrPortFrom(own4, port)
			if answer, err := w.Bind(w.program, number, view); err != nil || answer.Action != Succeed {
				t.Fatalf("%+v, %v", answer, err)
			}
			b := w.enforcer.bindings[w.enforcer.cookie(w.program.files[number])]
			if _, at := w.at(); !at.Addr().IsUnspecified() || at.Port() == 0 || at.Port() == port || b.View != view || b.Host != at || b.Ingress {
				t.Errorf("it is bound to %v, by %+v", at, b)
			}
		}
	}
}
