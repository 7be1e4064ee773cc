package graft

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/keeper"
)

// newUntrapped is a container whose loopback is on the host.
func newUntrapped(t *testing.T, host *fakePlace, rules ...string) *world {
	t.Helper()
	w := newWorld(t, host, newPlace(t), true, rules...)
	w.Untrapped = true
	return w
}

// A bind gets the port of the host's that stands for the program's, at the address that the
// program names.
func TestBindOnLoopback(t *testing.T) {
	host := newPlace(t, host4, other4, host6)
	setAnyPorts(t, host, "40000 40009", "40001-40008")
	ephemeral := func(port uint16) bool { return port == 40000 || port == 40009 }
	above := func(port uint16) bool { return port > 60999 }
	for _, c := range []struct {
		name   string
		rules  []string
		family int
		addr   string
		want   Answer
		at     string // the address that is bound; empty: none
		port   func(uint16) bool
	}{
		{"loopback", everywhere, ip4, "127.0.0.1:80", succeeded, "127.0.0.1", above},
		{"another address of it", everywhere, ip4, "127.0.0.53:53", succeeded, "127.0.0.53", above},
		{"wildcard", everywhere, ip4, "0.0.0.0:80", succeeded, "0.0.0.0", above},
		{"IPv6", everywhere, ip6, "[::1]:80", succeeded, "::1", above},
		{"mapped", everywhere, ip6, "[::ffff:127.0.0.1]:80", succeeded, "::ffff:127.0.0.1", above},
		{"IPv6 wildcard", everywhere, ip6, "[::]:80", succeeded, "::", above},
		{"a port that the kernel could choose", everywhere, ip4, "127.0.0.1:40009", succeeded, "127.0.0.1", above},
		{"a port that is reserved", everywhere, ip4, "127.0.0.1:40005", succeeded, "127.0.0.1", above},
		{"any port", everywhere, ip4, "127.0.0.1:0", Answer{}, "", nil},
		{"any port of any address", everywhere, ip6, "[::]:0", Answer{}, "", nil},
		{"an address that the host may choose", everywhere, ip4, "198.51.100.3:20", succeeded, "198.51.100.3", ephemeral},
		{"the endpoint's address", from, ip4, "198.51.100.1:0", succeeded, "198.51.100.1", ephemeral},
		{"an address of the host's beside it", from, ip4, "198.51.100.3:20", fail(unix.EADDRNOTAVAIL), "", nil},
		{"an address of a family without a rule", everywhere, ip6, "[2001:db8:1::1]:20", fail(unix.EADDRNOTAVAIL), "", nil},
		{"nobody's address", everywhere, ip4, "198.51.100.9:20", fail(unix.EADDRNOTAVAIL), "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, typ := range []int{tcp, udp} {
				w := newUntrapped(t, host, c.rules...)
				number := w.socket(host, c.family, typ)
				answer, err := w.Bind(w.program, number, addr(c.addr))
				if err != nil || answer != c.want {
					t.Fatalf("%+v, %v; want %+v", answer, err, c.want)
				}
				place, at := w.at()
				b, noted := w.enforcer.bindings[w.enforcer.cookie(w.program.files[number])]
				if c.at == "" {
					if place != "host" || at.Port() != 0 || noted {
						t.Errorf("in %s at %v; binding %+v", place, at, b)
					}
					continue
				}
				if place != "host" || at.Addr().String() != c.at || !c.port(at.Port()) {
					t.Errorf("in %s at %v", place, at)
				}
				onLoopback := at.Addr().Unmap().IsLoopback() || at.Addr().IsUnspecified()
				if b.Host != at || b.View != addr(c.addr) || b.Private != onLoopback || b.Ingress {
					t.Errorf("the kernel programs know %+v", b)
				}
			}
		})
	}
}

// Ports above the ephemeral range are the host's own where its administrator keeps them. Where none
// is left, a private port is of the kernel's choice.
func TestPrivatePortOfTheKernelsChoice(t *testing.T) {
	host := newPlace(t)
	setAnyPorts(t, host, "40000 40009", "")
	for name, set := range map[string]func(w *world){
		"all are kept":            func(w *world) { w.Kept = []endpoint.PortRange{{First: 61000, Last: 65535}} },
		"all ports are ephemeral": func(w *world) { w.Ephemeral = endpoint.PortRange{First: 1024, Last: 65535} },
	} {
		w := newUntrapped(t, host, everywhere...)
		set(w)
		if answer, err := w.Bind(w.program, w.socket(host, ip4, tcp), addr("127.0.0.1:80")); err != nil || answer != succeeded {
			t.Fatalf("%s: %+v, %v", name, answer, err)
		}
		if _, at := w.at(); at.Port() < 40000 || at.Port() > 40009 {
			t.Errorf("%s: at %v", name, at)
		}
	}
}

// A port that the program has is taken; one that it has let go of, and somebody else has now, is
// replaced, and so is one that another container was promised.
func TestBindOnLoopbackAgain(t *testing.T) {
	host := newPlace(t)
	for _, c := range []struct {
		name   string
		shares bool // the socket that has the port is of the container's loopback
		ports  Ports
		want   Answer
	}{
		{"it is the program's", true, freePorts{}, fail(unix.EADDRINUSE)},
		{"it is somebody else's", false, freePorts{}, succeeded},
		{"it is another container's", true, &reservedPort{}, succeeded},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newUntrapped(t, host, everywhere...)
			first := w.socket(host, ip4, tcp)
			if answer, err := w.Bind(w.program, first, addr("127.0.0.1:80")); answer != succeeded || err != nil {
				t.Fatalf("%+v, %v", answer, err)
			}
			_, before := w.at()
			if p, is := c.ports.(*reservedPort); is {
				p.port = before.Port()
			}
			held := []int{w.program.files[3], w.program.files[4]}
			defer func() { unix.Close(held[0]); unix.Close(held[1]) }()
			w.enforcer.shares, w.Ports = c.shares, c.ports
			second := w.socket(host, ip4, tcp)
			answer, err := w.Bind(w.program, second, addr("0.0.0.0:80"))
			if err != nil || answer != c.want {
				t.Fatalf("%+v, %v; want %+v", answer, err, c.want)
			}
			if _, at := w.at(); c.want == succeeded && at.Port() == before.Port() {
				t.Errorf("both are at %v", at)
			}
		})
	}
}

// The private port of one of the program's ports is no other's, also while no socket has it.
func TestPrivatePortsAreOfOnePort(t *testing.T) {
	host := newPlace(t)
	w := newUntrapped(t, host, everywhere...)
	w.Ephemeral.Last = 65533 // two are above
	bind := func(name string) uint16 {
		t.Helper()
		if answer, err := w.Bind(w.program, w.socket(host, ip4, tcp), addr(name)); answer != succeeded || err != nil {
			t.Fatalf("%+v, %v", answer, err)
		}
		_, at := w.at()
		for _, number := range []int{3, 4} {
			unix.Close(w.program.files[number])
			delete(w.program.files, number)
		}
		return at.Port()
	}
	first := bind("127.0.0.1:80")
	for range 8 {
		if second := bind("127.0.0.1:81"); second == first {
			t.Fatalf("both are at %d", first)
		}
		delete(w.enforcer.private, [2]int{unix.IPPROTO_TCP, 81})
	}
}

// reservedPort is one that another container was promised.
type reservedPort struct {
	fakePorts
	port uint16
}

func (p *reservedPort) Reserved(_ Port, of endpoint.PortRange) bool { return of.Contains(p.port) }

// A port that the kernel has chosen for a socket of the program's stands for itself when another
// socket binds it.
func TestBindOnLoopbackWhereTheKernelChose(t *testing.T) {
	host := newPlace(t)
	setAnyPorts(t, host, "40000 40009", "")
	busy, err := host.Socket(keeper.Kind{Family: ip4, Type: tcp})
	must(t, err)
	defer unix.Close(busy)
	must(t, unix.Bind(busy, sockaddr.Of(addr("127.0.0.1:40003"))))
	for _, shares := range []bool{true, false} {
		w := newUntrapped(t, host, everywhere...)
		w.enforcer.shares = shares
		want := fail(unix.EADDRINUSE)
		if !shares {
			want = succeeded
		}
		if answer, err := w.Bind(w.program, w.socket(host, ip4, tcp), addr("127.0.0.1:40003")); err != nil || answer != want {
			t.Errorf("of the container's loopback %v: %+v, %v; want %+v", shares, answer, err, want)
		}
	}
}

// A privileged port needs the capability that it needs in the container's namespace.
func TestBindPrivilegedPort(t *testing.T) {
	host := newPlace(t)
	for _, c := range []struct {
		address   string
		start     string
		incapable bool
		want      Answer
	}{
		{"127.0.0.1:1023", "1024", false, succeeded},
		{"127.0.0.1:1023", "1024", true, fail(unix.EACCES)},
		{"127.0.0.1:1024", "1024", true, succeeded},
		{"0.0.0.0:80", "80", true, succeeded},
		{"0.0.0.0:79", "80", true, fail(unix.EACCES)},
	} {
		w := newUntrapped(t, host, everywhere...)
		must(t, w.own.Do(func() error { return writeSysctl("net/ipv4/ip_unprivileged_port_start", c.start) }))
		w.program.incapable = c.incapable
		if answer, err := w.Bind(w.program, w.socket(host, ip4, tcp), addr(c.address)); err != nil || answer != c.want {
			t.Errorf("%+v: %+v, %v", c, answer, err)
		}
	}
}

// Sockets that share a port get the same one of the host's.
func TestBindOnLoopbackTogether(t *testing.T) {
	host := newPlace(t)
	for _, typ := range []int{tcp, udp} {
		w := newUntrapped(t, host, everywhere...)
		w.Ports, w.enforcer.shares = &fakePorts{asked: true}, true
		var at [2]netip.AddrPort
		for i := range at {
			number := w.socket(host, ip4, typ)
			must(t, unix.SetsockoptInt(w.program.files[number], unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
			if answer, err := w.Bind(w.program, number, addr("127.0.0.1:80")); answer != succeeded || err != nil {
				t.Fatalf("%+v, %v", answer, err)
			}
			_, at[i] = w.at()
			defer unix.Close(w.program.files[3])
			defer unix.Close(w.program.files[4])
		}
		w.program.files = nil
		if at[0] != at[1] {
			t.Errorf("they are at %v", at)
		}
	}
}

// Other calls are the kernel's alone.
func TestUntrappedCalls(t *testing.T) {
	host := newPlace(t)
	w := newUntrapped(t, host, everywhere...)
	number := w.socket(host, ip4, tcp)
	connect, err1 := w.Connect(w.program, number, addr("127.0.0.1:80"))
	send, err2 := w.Send(w.program, number, addr("127.0.0.1:80"))
	listen, err3 := w.Listen(w.program, number, 1)
	if place, _ := w.at(); place != "host" || connect != (Answer{}) || send != (Answer{}) || listen != (Answer{}) {
		t.Errorf("in %s; connect %+v, send %+v, listen %+v", place, connect, send, listen)
	}
	must(t, err1)
	must(t, err2)
	must(t, err3)
}
