package graft

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/keeper"
)

// fakePorts has ports of others.
type fakePorts struct {
	reserved bool              // to others: all that the kernel gives to who asks for none
	others   func(p Port) bool // whose are the others'; nil: none
	asked    bool              // whether taken is called
	bound    []Port
	taken    []bool // what it said
}

func (f *fakePorts) Bind(p Port, taken func(Port) (bool, error), bind func() error) error {
	if f.others != nil && f.others(p) {
		return unix.EADDRINUSE
	}
	if f.asked && taken != nil {
		is, err := taken(p)
		if err != nil {
			return err
		}
		f.taken = append(f.taken, is)
		if is {
			return unix.EADDRINUSE
		}
	}
	if err := bind(); err != nil {
		return err
	}
	f.bound = append(f.bound, p)
	return nil
}

func (f *fakePorts) Reserved(Port, endpoint.PortRange) bool { return f.reserved }
func (f *fakePorts) Others(p Port) bool                     { return f.others != nil && f.others(p) }

// setAnyPorts sets the ports that a namespace's kernel gives to who asks for none.
func setAnyPorts(t *testing.T, place *fakePlace, local, reserved string) {
	t.Helper()
	must(t, place.Do(func() error {
		return errors.Join(writeSysctl("net/ipv4/ip_local_port_range", local), writeSysctl("net/ipv4/ip_local_reserved_ports", reserved))
	}))
}

// A server that binds any port gets one that the kernel gives to such, which is nobody's, and
// the kernel programs learn which.
func TestAnyPort(t *testing.T) {
	host, own := newPlace(t, host4), newPlace(t)
	setAnyPorts(t, host, "40000 40009", "40001-40008")
	busy, err := host.Socket(keeper.Kind{Family: ip4, Type: udp})
	must(t, err)
	defer unix.Close(busy)
	must(t, unix.Bind(busy, sockaddr.Of(addr("198.51.100.1:40000"))))
	only := func(port uint16) func(Port) bool { return func(p Port) bool { return p.At.Port() != port } }
	for _, c := range []struct {
		name  string
		typ   int
		ports fakePorts
		want  Answer
		port  uint16 // 0: either
	}{
		{name: "the kernel chooses", typ: tcp, want: succeeded},
		{name: "we choose", typ: tcp, ports: fakePorts{reserved: true}, want: succeeded},
		{name: "we choose what is not others'", typ: tcp, ports: fakePorts{reserved: true, others: only(40009)}, want: succeeded, port: 40009},
		{name: "we choose what is not in use", typ: udp, ports: fakePorts{reserved: true}, want: succeeded, port: 40009},
		{name: "all are others'", typ: tcp, ports: fakePorts{reserved: true, others: func(Port) bool { return true }}, want: fail(unix.EADDRINUSE)},
		{name: "all are others' or in use", typ: udp, ports: fakePorts{reserved: true, others: only(40000)}, want: fail(unix.EADDRINUSE)},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, host, own, false)
			w.name("any type ipv4 addr 198.51.100.1 port dynamic")
			w.rule("10.0.0.0/8=any", "0.0.0.0:0=any")
			w.Ports = &c.ports
			number := w.socket(own, ip4, c.typ)
			answer, err := w.Bind(w.program, number, addr("0.0.0.0:0"))
			if err != nil || answer != c.want {
				t.Fatalf("%+v, %v; want %+v", answer, err, c.want)
			}
			place, at := w.at()
			if c.want != succeeded {
				if place != "own" || at.Port() != 0 || len(w.enforcer.bindings) != 0 || len(c.ports.bound) != 0 {
					t.Errorf("in %s at %v; bindings %v, ports %v", place, at, w.enforcer.bindings, c.ports.bound)
				}
				return
			}
			if place != "host" || at.Addr() != host4 || at.Port() != 40000 && at.Port() != 40009 || c.port != 0 && at.Port() != c.port {
				t.Errorf("in %s at %v", place, at)
			}
			if b := w.enforcer.bindings[w.enforcer.cookie(w.program.files[number])]; b.Host != at {
				t.Errorf("the kernel programs know %+v", b)
			}
			if len(c.ports.bound) != 1 || c.ports.bound[0].At != at || c.ports.bound[0].Netns != host.Cookie() {
				t.Errorf("noted: %+v", c.ports.bound)
			}
		})
	}
}

// Where sockets may share a port, whoever notes ports asks whether some socket has it: any of
// UDP, and one of TCP that listens or does not set SO_REUSEADDR.
func TestPortsInUse(t *testing.T) {
	host, own := newPlace(t, host4, host6), newPlace(t)
	for _, c := range []struct {
		name    string
		line    string
		bind    string
		typ     int
		share   int    // option that the program's socket sets, or 0
		busy    string // address of another socket, which shares too
		listens bool

		taken []bool
		want  Answer
	}{
		{name: "TCP that shares nothing", bind: "0.0.0.0:8080", typ: tcp, want: succeeded},
		{name: "TCP that sets SO_REUSEADDR", bind: "0.0.0.0:8080", typ: tcp, share: unix.SO_REUSEADDR, want: succeeded},
		{name: "TCP, free", bind: "0.0.0.0:8080", typ: tcp, share: unix.SO_REUSEPORT, taken: []bool{false}, want: succeeded},
		{name: "TCP, another listens", bind: "0.0.0.0:8080", typ: tcp, share: unix.SO_REUSEPORT, busy: "198.51.100.1:80", listens: true, taken: []bool{true}, want: fail(unix.EADDRINUSE)},
		{name: "UDP, free", bind: "0.0.0.0:8080", typ: udp, share: unix.SO_REUSEADDR, taken: []bool{false}, want: succeeded},
		{name: "UDP, in use", bind: "0.0.0.0:8080", typ: udp, share: unix.SO_REUSEADDR, busy: "198.51.100.1:80", taken: []bool{true}, want: fail(unix.EADDRINUSE)},
		{name: "UDP, in use elsewhere", bind: "0.0.0.0:8080", typ: udp, share: unix.SO_REUSEPORT, busy: "127.0.0.1:80", taken: []bool{false}, want: succeeded},
		{name: "IPv6, in use as IPv4", line: "ep type ipv6 addr :: port 80", bind: "[::]:8080", typ: udp, share: unix.SO_REUSEPORT, busy: "127.0.0.1:80", taken: []bool{true}, want: fail(unix.EADDRINUSE)},
		{name: "IPv6 of one address", line: "ep type ipv6 addr 2001:db8:1::1 port 80", bind: "[::]:8080", typ: udp, share: unix.SO_REUSEPORT, busy: "127.0.0.1:80", taken: []bool{false}, want: succeeded},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, host, own, false)
			egress, family := "10.0.0.0/8=any", ip4
			w.name("any type ipv4 addr 0.0.0.0 port dynamic")
			if c.line == "" {
				c.line = "ep type ipv4 addr 198.51.100.1 port 80"
			} else {
				family = ip6
			}
			w.name(c.line)
			w.rule(egress, c.bind+"=ep")
			ports := &fakePorts{asked: true}
			w.Ports = ports
			if c.busy != "" {
				busy, err := host.Socket(keeper.Kind{Family: ip4, Type: c.typ})
				must(t, err)
				defer unix.Close(busy)
				must(t, errors.Join(unix.SetsockoptInt(busy, unix.SOL_SOCKET, c.share, 1), unix.Bind(busy, sockaddr.Of(addr(c.busy)))))
				if c.listens {
					must(t, unix.Listen(busy, 1))
				}
			}
			number := w.socket(own, family, c.typ)
			if c.share != 0 {
				must(t, unix.SetsockoptInt(w.program.files[number], unix.SOL_SOCKET, c.share, 1))
			}
			answer, err := w.Bind(w.program, number, addr(c.bind))
			if err != nil || answer != c.want || !slices.Equal(ports.taken, c.taken) {
				t.Errorf("%+v, %v, taken %v; want %+v, %v", answer, err, ports.taken, c.want, c.taken)
			}
			place, _ := w.at()
			if (place == "host") != (c.want == succeeded) {
				t.Errorf("the socket is in %s", place)
			}
		})
	}
}

// What a rule has bound does not listen once another container has its port.
func TestListenOnOthersPort(t *testing.T) {
	host, own := newPlace(t, host4), newPlace(t)
	w := newWorld(t, host, own, false, "-i", "0.0.0.0:8080=198.51.100.1:80")
	ports := &fakePorts{}
	w.Ports = ports
	number := w.socket(own, ip4, tcp)
	if answer, err := w.Bind(w.program, number, addr("0.0.0.0:8080")); err != nil || answer != succeeded {
		t.Fatal(answer, err)
	}
	at := Port{Netns: host.Cookie(), Protocol: unix.IPPROTO_TCP, At: netip.MustParseAddrPort("198.51.100.1:80")}
	ports.others = func(p Port) bool { return p == at }
	if answer, err := w.Listen(w.program, number, 1); err != nil || answer != fail(unix.EADDRINUSE) {
		t.Errorf("%+v, %v", answer, err)
	}
	if on, err := unix.GetsockoptInt(w.program.files[number], unix.SOL_SOCKET, unix.SO_ACCEPTCONN); on != 0 || err != nil {
		t.Errorf("it listens: %d, %v", on, err)
	}
	ports.others = nil
	if answer, err := w.Listen(w.program, number, 1); err != nil || answer != succeeded {
		t.Errorf("later: %+v, %v", answer, err)
	}
}

// A server that its own container's loopback does not reach serves the world all the same.
func TestServerWithoutLoopback(t *testing.T) {
	host, own := newPlace(t, host4), newPlace(t)
	w := newWorld(t, host, own, false, "-i", "0.0.0.0:8080=198.51.100.1:80")
	w.enforcer.serve = errors.New("no room")
	if answer, err := w.Bind(w.program, w.socket(own, ip4, tcp), addr("0.0.0.0:8080")); err != nil || answer != succeeded {
		t.Errorf("%+v, %v", answer, err)
	}
	if place, at := w.at(); place != "host" || at != addr("198.51.100.1:80") {
		t.Errorf("at %v in %s", at, place)
	}
}
