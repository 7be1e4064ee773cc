package graft

import (
	"errors"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/afgraft"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/keeper"
)

// name gives the program endpoints, as a user writes them.
func (w *world) name(lines ...string) {
	w.t.Helper()
	for _, line := range lines {
		ep, err := endpoint.Parse(line)
		if err != nil {
			w.t.Fatal(err)
		}
		w.endpoints[ep.Name] = ep
	}
}

// standIn makes an AF_GRAFT socket as the program does, with a second descriptor of it.
func (w *world) standIn(typ int) (number int) {
	w.t.Helper()
	answer, err := w.Socket(w.program, typ, 0)
	if err != nil || answer.Action != Give {
		w.t.Fatalf("%+v, %v", answer, err)
	}
	w.program.files[3] = answer.File
	second, err := unix.Dup(answer.File)
	if err != nil {
		w.t.Fatal(err)
	}
	w.program.files[4] = second
	return 3
}

// state is what belongs to the program's socket.
func (w *world) state() (afgraft.State, bool) {
	w.t.Helper()
	s, is, err := w.AFGraftState(w.program, 3)
	if err != nil {
		w.t.Fatal(err)
	}
	return s, is
}

// What socket(AF_GRAFT) makes, and for which types.
func TestStandIn(t *testing.T) {
	host, own := newPlace(t, host4), newPlace(t)
	for _, c := range []struct {
		name          string
		typ, protocol int
		noIPv6        bool
		want          unix.Errno
		family        int
	}{
		{name: "stream", typ: tcp, family: ip6},
		{name: "datagram", typ: udp, family: ip6},
		{name: "TCP", typ: tcp, protocol: unix.IPPROTO_TCP, family: ip6},
		{name: "UDP as a stream", typ: tcp, protocol: unix.IPPROTO_UDP, want: unix.EPROTONOSUPPORT},
		{name: "raw", typ: unix.SOCK_RAW, want: unix.ESOCKTNOSUPPORT},
		{name: "flags", typ: tcp | unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC, family: ip6},
		{name: "a kernel without IPv6", typ: tcp, noIPv6: true, family: ip4},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, host, own, false)
			if c.noIPv6 {
				own.socket = func(k keeper.Kind) error {
					if k.Family == ip6 {
						return &keeper.SocketError{Errno: unix.EAFNOSUPPORT}
					}
					return nil
				}
			}
			answer, err := w.Socket(w.program, c.typ, c.protocol)
			if c.want != 0 {
				if err != nil || answer != fail(c.want) || len(w.program.files) != 0 || len(w.known) != 0 {
					t.Errorf("%+v, %v; files %v, known %v", answer, err, w.program.files, w.known)
				}
				return
			}
			if err != nil || answer.Action != Give {
				t.Fatalf("%+v, %v", answer, err)
			}
			w.program.files[3] = answer.File
			s, err := inspect(w.program.files[3])
			if err != nil || s.family != c.family || s.netns != own.Cookie() {
				t.Errorf("%+v, %v", s, err)
			}
			flags, err := unix.FcntlInt(uintptr(s.file), unix.F_GETFL, 0)
			if nonblock := c.typ&unix.SOCK_NONBLOCK != 0; err != nil || (flags&unix.O_NONBLOCK != 0) != nonblock {
				t.Errorf("flags %#x, %v", flags, err)
			}
			if state, is := w.state(); !is || state != (afgraft.State{}) {
				t.Errorf("%+v, %v", state, is)
			}
			if !slices.Equal(w.known, []Hint{OwnSockets, AFGraftSockets}) {
				t.Errorf("known: %v", w.known)
			}
		})
	}
}

// What goes wrong while a stand-in is made: what the kernel refuses is the program's errno, all else is ours.
func TestFaultsOfStandIns(t *testing.T) {
	host, own := newPlace(t, host4), newPlace(t)
	ours := errors.New("a fault of ours")
	for _, c := range []struct {
		name  string
		fault func(w *world)
		want  Answer
		err   error
	}{
		{"the kernel makes none", func(w *world) { w.own.made = &keeper.SocketError{Errno: unix.ENOBUFS} }, fail(unix.ENOBUFS), nil},
		{"the maker does not start", func(w *world) { w.own.err = ours }, proceed, ours},
		{"it cannot be marked", func(w *world) { w.enforcer.faults["SetAFGraft"] = ours }, proceed, ours},
	} {
		w := newWorld(t, host, own, false)
		c.fault(w)
		answer, err := w.Socket(w.program, tcp, 0)
		if answer != c.want || !errors.Is(err, c.err) || len(w.program.files) != 0 {
			t.Errorf("%s: %+v, %v; files %v", c.name, answer, err, w.program.files)
		}
	}
}

// Where a stand-in is once it is bound to a name, or to none.
func TestBindToNames(t *testing.T) {
	host, own := newPlace(t, host4, other4, host6), newPlace(t)
	dir := t.TempDir()
	taken, err := host.Socket(keeper.Kind{Family: ip4, Type: tcp})
	if err == nil {
		err = errors.Join(unix.Bind(taken, sockaddr.Of(addr("198.51.100.1:81"))), unix.Listen(taken, 1))
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(taken)
	for _, c := range []struct {
		name string
		line string // of the endpoint ep; empty: there is none
		bind string // else ep
		typ  int

		want  Answer
		place string
		bound string
	}{
		{name: "IPv4", line: "ep type ipv4 addr 198.51.100.1 port 80 nameable", typ: tcp, want: succeeded, place: "host", bound: "198.51.100.1:80"},
		{name: "IPv6", line: "ep type ipv6 addr 2001:db8:1::1 port 80 nameable", typ: tcp, want: succeeded, place: "host", bound: "[2001:db8:1::1]:80"},
		{name: "datagrams", line: "ep type ipv4 addr 198.51.100.1 port 80 nameable", typ: udp, want: succeeded, place: "host", bound: "198.51.100.1:80"},
		{name: "the first free port", line: "ep type ipv4 addr 198.51.100.1 port 81-83 nameable", typ: tcp, want: succeeded, place: "host", bound: "198.51.100.1:82"},
		{name: "no free port", line: "ep type ipv4 addr 198.51.100.1 port 81 nameable", typ: tcp, want: fail(unix.EADDRINUSE), place: "own"},
		{name: "any port", line: "ep type ipv4 addr 198.51.100.1 port dynamic nameable", typ: tcp, want: succeeded, place: "host", bound: "198.51.100.1:0"},
		{name: "an address that is not there", line: "ep type ipv4 addr 198.51.100.9 port 80 nameable", typ: tcp, want: fail(unix.EADDRNOTAVAIL), place: "own"},
		{name: "a path", line: "ep type unix path " + filepath.Join(dir, "s") + " nameable", typ: tcp, want: succeeded},
		{name: "a path whose folder is not there", line: "ep type unix path " + filepath.Join(dir, "no", "s") + " nameable", typ: tcp, want: fail(unix.ENOENT), place: "own"},
		{name: "not nameable", line: "ep type ipv4 addr 198.51.100.1 port 80", typ: tcp, want: fail(unix.ENOENT), place: "own"},
		{name: "unknown", typ: tcp, want: fail(unix.ENOENT), place: "own"},
		{name: "another name", line: "ep type ipv4 addr 198.51.100.1 port 80 nameable", bind: "other", typ: tcp, want: fail(unix.ENOENT), place: "own"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, host, own, false)
			if c.line != "" {
				w.name(c.line)
			}
			number, bind := w.standIn(c.typ), "ep"
			if c.bind != "" {
				bind = c.bind
			}
			answer, err := w.BindNamed(w.program, number, bind)
			if err != nil || answer != c.want {
				t.Errorf("%+v, %v; want %+v", answer, err, c.want)
			}
			place, at := w.at()
			want := netip.AddrPort{}
			if c.bound != "" {
				want = addr(c.bound)
			}
			if place != c.place || c.bound != "" && (at.Addr() != want.Addr() || want.Port() != 0 && at != want || at.Port() == 0) {
				t.Errorf("at %v in %q, want %v in %q", at, place, want, c.place)
			}
			wantState := afgraft.State{}
			if c.want == succeeded {
				wantState.Name = "ep"
			}
			if state, is := w.state(); !is || state != wantState {
				t.Errorf("state %+v, %v", state, is)
			}
			if c.bound == "" {
				return
			}
			b := w.enforcer.bindings[w.enforcer.cookie(w.program.files[number])]
			if b.Host != at || !b.Ingress || b.Named != 1 || b.Netns != host.Cookie() {
				t.Errorf("the kernel programs know %+v", b)
			}
			// The same call may be put to the next supervisor again; another is too late.
			if answer, err := w.BindNamed(w.program, number, bind); err != nil || answer != succeeded {
				t.Errorf("answered again: %+v, %v", answer, err)
			}
			b.Call++
			w.enforcer.bindings[w.enforcer.cookie(w.program.files[number])] = b
			if answer, err := w.BindNamed(w.program, number, bind); err != nil || answer != fail(unix.EINVAL) {
				t.Errorf("bound again: %+v, %v", answer, err)
			}
		})
	}
}

// What a stand-in was told goes with it: its state, and delayed options, set before bind.
func TestStandInTakesItsOptionsAlong(t *testing.T) {
	host, own := newPlace(t, host4), newPlace(t)
	w := newWorld(t, host, own, false)
	w.name("ep type ipv4 addr 198.51.100.1 port 80 nameable")
	number := w.standIn(tcp)
	cookie := w.enforcer.cookie(w.program.files[number])
	w.enforcer.states[cookie] = afgraft.State{Delayed: true, NameTransparent: true}
	value := func(n uint32) []byte { return native.AppendUint32(nil, n) }
	w.enforcer.queues[cookie] = []afgraft.Option{
		{Level: unix.SOL_SOCKET, Name: unix.SO_KEEPALIVE, Value: value(1)}, {Level: unix.SOL_SOCKET, Name: unix.SO_MARK, Value: value(1)},
	}
	if err := unix.SetsockoptInt(w.program.files[number], unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		t.Fatal(err)
	}
	if answer, err := w.BindNamed(w.program, number, "ep"); err != nil || answer != succeeded {
		t.Fatal(answer, err)
	}
	file := w.program.files[number]
	for option, level := range map[int]int{unix.TCP_NODELAY: unix.IPPROTO_TCP, unix.SO_KEEPALIVE: unix.SOL_SOCKET} {
		if on, err := unix.GetsockoptInt(file, level, option); on != 1 || err != nil {
			t.Errorf("option %d of level %d is %d, %v", option, level, on, err)
		}
	}
	if state, _ := w.state(); state != (afgraft.State{Name: "ep", Delayed: true, NameTransparent: true}) {
		t.Errorf("state %+v", state)
	}
	socket, err := w.AFGraftSocket(w.program, number)
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	options, err := socket.Store.AFGraftOptions(socket.File)
	want := []afgraft.Option{
		{Level: unix.SOL_SOCKET, Name: unix.SO_KEEPALIVE, Value: value(1), Done: true},
		{Level: unix.SOL_SOCKET, Name: unix.SO_MARK, Value: value(1), Done: true, Result: -int(unix.EPERM)},
	}
	if diff := cmp.Diff(want, options); diff != "" || err != nil || !socket.Bound() {
		t.Errorf("results (-want +got), %v:\n%s", err, diff)
	}
}

// connect(2) and sends of a stand-in bind it to default-source first.
func TestDefaultSource(t *testing.T) {
	host, own := newPlace(t, host4), newPlace(t)
	const line = "default-source type ipv4 addr 198.51.100.1 port dynamic nameable"
	for name, call := range map[string]func(*world, int) (Answer, error){
		"connect": func(w *world, n int) (Answer, error) { return w.Connect(w.program, n, addr("203.0.113.9:80")) },
		"send":    func(w *world, n int) (Answer, error) { return w.Send(w.program, n, addr("203.0.113.9:80")) },
	} {
		w := newWorld(t, host, own, false)
		number := w.standIn(udp)
		if answer, err := call(w, number); err != nil || answer != fail(unix.ENOENT) {
			t.Errorf("%s without such an endpoint: %+v, %v", name, answer, err)
		}
		if place, _ := w.at(); place != "own" {
			t.Errorf("%s: in %s", name, place)
		}
		w.name(line)
		for range 2 { // a socket that is bound is left where it is
			if answer, err := call(w, number); err != nil || answer != proceed {
				t.Errorf("%s: %+v, %v", name, answer, err)
			}
			if place, at := w.at(); place != "host" || at.Addr() != host4 {
				t.Errorf("%s: at %v in %s", name, at, place)
			}
		}
		if state, _ := w.state(); state.Name != afgraft.DefaultSource {
			t.Errorf("%s: state %+v", name, state)
		}
	}
}

// An AF_GRAFT socket takes no address of IP to bind, and listens only where it is bound.
func TestStandInIsNoIPSocket(t *testing.T) {
	host, own := newPlace(t, host4), newPlace(t)
	w := newWorld(t, host, own, false, "-i", "0.0.0.0:8080=198.51.100.1:80")
	w.name("ep type ipv4 addr 198.51.100.1 port 80 nameable")
	number := w.standIn(tcp)
	if answer, err := w.Bind(w.program, number, addr("0.0.0.0:8080")); err != nil || answer != fail(unix.EAFNOSUPPORT) {
		t.Errorf("bind: %+v, %v", answer, err)
	}
	if answer, err := w.Listen(w.program, number, 1); err != nil || answer != fail(unix.EADDRNOTAVAIL) {
		t.Errorf("listen before bind: %+v, %v", answer, err)
	}
	if answer, err := w.BindNamed(w.program, number, "ep"); err != nil || answer != succeeded {
		t.Fatal(answer, err)
	}
	if answer, err := w.Listen(w.program, number, 1); err != nil || answer != succeeded {
		t.Errorf("listen: %+v, %v", answer, err)
	}
	if place, _ := w.at(); place != "host" {
		t.Errorf("it listens in %s", place)
	}
}

// Another descriptor is none of AF_GRAFT's.
func TestOthersAreNotNamed(t *testing.T) {
	host, own := newPlace(t, host4), newPlace(t)
	w := newWorld(t, host, own, false)
	w.name("ep type ipv4 addr 198.51.100.1 port 80 nameable")
	for _, number := range []int{w.socket(own, ip4, tcp), 99} {
		if answer, err := w.BindNamed(w.program, number, "ep"); err != nil || answer != proceed {
			t.Errorf("bind of %d: %+v, %v", number, answer, err)
		}
		if s, err := w.AFGraftSocket(w.program, number); s != nil || err != nil {
			t.Errorf("%d: %v, %v", number, s, err)
		}
		if s, is, err := w.AFGraftState(w.program, number); is || err != nil {
			t.Errorf("%d: %v, %v, %v", number, s, is, err)
		}
	}
}

// What goes wrong while a stand-in is bound leaves it as it was, at each step.
func TestFaultsOfBindToNames(t *testing.T) {
	host, own := newPlace(t, host4), newPlace(t)
	ours := errors.New("a fault of ours")
	for name, fault := range map[string]func(w *world){
		"the look-up":                  func(w *world) { w.enforcer.faults["AFGraft"] = ours },
		"the maker":                    func(w *world) { w.host.err = ours },
		"it is not policed":            func(w *world) { w.enforcer.prove = ours },
		"its options cannot be read":   func(w *world) { w.enforcer.faults["AFGraftOptions"] = ours },
		"its name has no room":         func(w *world) { w.enforcer.faults["Name"] = ours },
		"its bind cannot be allowed":   func(w *world) { w.enforcer.faults["AllowBind"] = ours },
		"its state cannot be noted":    func(w *world) { w.enforcer.faults["SetAFGraft"] = ours },
		"its queue cannot be noted":    func(w *world) { w.enforcer.faults["SetAFGraftOptions"] = ours },
		"the program cannot be given":  func(w *world) { w.program.install = ours },
		"the kernel makes no socket":   func(w *world) { w.host.made = &keeper.SocketError{Errno: unix.EMFILE} },
		"the endpoint goes in between": func(w *world) { w.host.socket = func(keeper.Kind) error { clear(w.endpoints); return nil } },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, host, own, false)
			w.name("ep type ipv4 addr 198.51.100.1 port 80 nameable")
			number := w.standIn(tcp)
			cookie := w.enforcer.cookie(w.program.files[number])
			w.enforcer.queues[cookie] = []afgraft.Option{{Level: unix.SOL_SOCKET, Name: unix.SO_KEEPALIVE, Value: native.AppendUint32(nil, 1)}}
			states, queue := maps.Clone(w.enforcer.states), slices.Clone(w.enforcer.queues[cookie])
			fault(w)
			answer, err := w.BindNamed(w.program, number, "ep")
			switch name {
			case "the kernel makes no socket":
				if err != nil || answer != fail(unix.EMFILE) {
					t.Errorf("%+v, %v", answer, err)
				}
			case "the endpoint goes in between":
				if err != nil || answer != fail(unix.ENOENT) || len(w.enforcer.names) != 0 {
					t.Errorf("%+v, %v; names %v", answer, err, w.enforcer.names)
				}
			default:
				if !errors.Is(err, ours) || answer != proceed {
					t.Errorf("%+v, %v", answer, err)
				}
			}
			if place, _ := w.at(); place != "own" {
				t.Errorf("the socket is in %s", place)
			}
			if got := w.enforcer.states[cookie]; got != states[cookie] || !cmp.Equal(w.enforcer.queues[cookie], queue) {
				t.Errorf("state %+v, queue %v", got, w.enforcer.queues[cookie])
			}
			// The port is free again.
			clear(w.enforcer.faults)
			w.enforcer.prove, w.program.install = nil, nil
			*host = fakePlace{NS: host.NS}
			w.name("ep type ipv4 addr 198.51.100.1 port 80 nameable")
			if answer, err := w.BindNamed(w.program, number, "ep"); err != nil || answer != succeeded {
				t.Errorf("then: %+v, %v", answer, err)
			}
		})
	}
}
