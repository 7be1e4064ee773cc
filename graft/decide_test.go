package graft

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/keeper"
)

func addr(s string) netip.AddrPort {
	if s == "" {
		return netip.AddrPort{}
	}
	return netip.MustParseAddrPort(s)
}

const (
	tcp = unix.SOCK_STREAM
	udp = unix.SOCK_DGRAM
	ip4 = unix.AF_INET
	ip6 = unix.AF_INET6
)

var (
	proceed   = Answer{}
	succeeded = Answer{Action: Succeed}
)

// everywhere leads to all of IPv4 from any address of the host, from one by from.
var everywhere, from = []string{"-e", "0.0.0.0/0=0.0.0.0"}, []string{"-e", "0.0.0.0/0=198.51.100.1"}

// Where a client's socket is, once it connects or sends, what it is bound to there, and
// what the front ends have to know by then.
func TestWhereClientsAre(t *testing.T) {
	host, own := newPlace(t, host4, other4, host6), newPlace(t)
	for _, c := range []struct {
		name        string
		rules       []string
		made        *fakePlace
		family, typ int
		bound       string // before; the kernel chose the port of what ends with ":0"
		send        bool   // else connect
		to          string

		want   Answer
		place  string
		source string // of what it is bound to then; a port stands for itself, or is 0 for any
		known  []Hint
	}{
		{name: "a rule leads to the host", rules: everywhere, made: own, family: ip4, typ: tcp, to: "203.0.113.9:80", place: "host"},
		{name: "created there", rules: everywhere, made: host, family: ip4, typ: tcp, to: "203.0.113.9:80", place: "host"},
		{name: "no rule", rules: []string{"-e", "10.0.0.0/8=0.0.0.0"}, made: own, family: ip4, typ: tcp, to: "203.0.113.9:80", place: "own"},
		{name: "no rule, created on the host", rules: []string{"-e", "10.0.0.0/8=0.0.0.0"}, made: host, family: ip4, typ: tcp, to: "203.0.113.9:80", place: "own", known: []Hint{OwnSockets}},
		{name: "another port than the rule's", rules: []string{"-e", "203.0.113.0/24:443=0.0.0.0"}, made: own, family: ip4, typ: tcp, to: "203.0.113.9:80", place: "own"},
		{name: "the rule's port", rules: []string{"-e", "203.0.113.0/24:443=0.0.0.0"}, made: own, family: ip4, typ: tcp, to: "203.0.113.9:443", place: "host"},
		{name: "its own loopback", rules: everywhere, made: host, family: ip4, typ: tcp, to: "127.0.0.1:80", place: "own", known: []Hint{OwnSockets}},
		{name: "IPv6 by a rule of IPv4", rules: everywhere, made: own, family: ip6, typ: tcp, to: "[2001:db8::9]:80", place: "own"},
		{name: "a mapped address", rules: everywhere, made: own, family: ip6, typ: tcp, to: "[::ffff:203.0.113.9]:80", place: "host"},
		{name: "IPv6", rules: []string{"-e", "::/0=::"}, made: own, family: ip6, typ: tcp, to: "[2001:db8::9]:80", place: "host"},

		{name: "a datagram", rules: everywhere, made: own, family: ip4, typ: udp, send: true, to: "203.0.113.9:53", place: "host"},
		{name: "a datagram to its own loopback", rules: everywhere, made: host, family: ip4, typ: udp, send: true, to: "127.0.0.1:53", place: "own", known: []Hint{OwnSockets}},

		{name: "bound to its loopback, to the host", rules: everywhere, made: own, family: ip4, typ: tcp, bound: "127.0.0.1:0", to: "203.0.113.9:80", want: fail(unix.EINVAL), place: "own", source: "127.0.0.1:0"},
		{name: "bound to a port of its choice", rules: everywhere, made: own, family: ip4, typ: udp, bound: "0.0.0.0:5000", to: "203.0.113.9:80", place: "host", source: "0.0.0.0:0"},
		{name: "bound, the rule has an address", rules: from, made: own, family: ip4, typ: udp, bound: "0.0.0.0:0", to: "203.0.113.9:80", place: "host", source: "198.51.100.1:0"},
		{name: "bound, sends, the rule has an address", rules: from, made: own, family: ip4, typ: udp, bound: "0.0.0.0:0", send: true, to: "203.0.113.9:80", place: "host", source: "198.51.100.1:0"},
		{name: "bound in IPv6 to a mapped one", rules: from, made: own, family: ip6, typ: tcp, bound: "[::]:0", to: "[::ffff:203.0.113.9]:80", place: "host", source: "[::ffff:198.51.100.1]:0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, host, own, false, c.rules...)
			number := w.socket(c.made, c.family, c.typ)
			if c.bound != "" {
				answer, err := w.Bind(w.program, number, addr(c.bound))
				if err == nil && answer.Action == Proceed {
					err = unix.Bind(w.program.files[number], sockaddr.Of(addr(c.bound)))
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			call := w.Connect
			if c.send {
				call = w.Send
			}
			answer, err := call(w.program, number, addr(c.to))
			if err != nil || answer != c.want {
				t.Errorf("%+v, %v; want %+v", answer, err, c.want)
			}
			place, bound := w.at()
			if place != c.place {
				t.Errorf("the socket is in %q, not %q", place, c.place)
			}
			want := addr(c.source)
			if c.source != "" && (bound.Addr() != want.Addr() || bound.Port() == 0 || bound.Port() == 5000) {
				t.Errorf("bound to %v, not %v", bound, want)
			}
			if c.source == "" && bound.Port() != 0 {
				t.Errorf("bound to %v", bound)
			}
			if !slices.Equal(w.known, c.known) {
				t.Errorf("known: %v, not %v", w.known, c.known)
			}
		})
	}
}

// A client keeps a port that the kernel chose, if the host's kernel could have.
func TestChosenPortIsKept(t *testing.T) {
	host, own := newPlace(t, host4), newPlace(t)
	w := newWorld(t, host, own, false, everywhere...)
	number := w.socket(own, ip4, udp)
	if answer, err := w.Bind(w.program, number, addr("0.0.0.0:0")); err != nil || answer != proceed {
		t.Fatal(answer, err)
	}
	if err := unix.Bind(w.program.files[number], &unix.SockaddrInet4{Port: 40123}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Connect(w.program, number, addr("203.0.113.9:53")); err != nil {
		t.Fatal(err)
	}
	if place, bound := w.at(); place != "host" || bound != addr("0.0.0.0:40123") {
		t.Errorf("%v in %s", bound, place)
	}
}

// The first datagram decides where a socket is; one that was moved for it is another, and
// its first decides again.
func TestFirstDatagramDecides(t *testing.T) {
	host, own := newPlace(t, host4), newPlace(t)
	const remote, loopback = "203.0.113.9:53", "127.0.0.1:53"
	for _, c := range []struct {
		made   *fakePlace
		to     []string
		places []string
	}{
		{host, []string{remote, loopback, remote}, []string{"host", "host", "host"}},
		{host, []string{loopback, loopback, remote}, []string{"own", "own", "own"}},
		{own, []string{loopback, remote}, []string{"own", "own"}},
		{own, []string{remote, remote, loopback}, []string{"host", "host", "host"}},
	} {
		w := newWorld(t, host, own, false, everywhere...)
		number := w.socket(c.made, ip4, udp)
		for i, to := range c.to {
			if _, err := w.Send(w.program, number, addr(to)); err != nil {
				t.Fatal(err)
			}
			if place, _ := w.at(); place != c.places[i] {
				t.Errorf("%v: after datagram %d in %s, not %v", c.to, i, place, c.places)
			}
		}
	}
}

// Where a server's socket is once it is bound, at which name, and what is known by then.
func TestWhereServersAre(t *testing.T) {
	host, own := newPlace(t, host4, other4, host6), newPlace(t)
	web := []string{"-i", "0.0.0.0:8080=198.51.100.1:80"}
	for _, c := range []struct {
		name        string
		rules       []string
		made        *fakePlace
		family, typ int
		v6only      bool
		bind        string

		want  Answer
		place string
		bound string // by the engine; empty: the kernel is left to do it
		known []Hint
	}{
		{name: "a rule", rules: web, made: own, family: ip4, typ: tcp, bind: "0.0.0.0:8080", want: succeeded, place: "host", bound: "198.51.100.1:80", known: []Hint{Services}},
		{name: "created on the host", rules: web, made: host, family: ip4, typ: tcp, bind: "0.0.0.0:8080", want: succeeded, place: "host", bound: "198.51.100.1:80", known: []Hint{Services}},
		{name: "datagrams", rules: web, made: own, family: ip4, typ: udp, bind: "0.0.0.0:8080", want: succeeded, place: "host", bound: "198.51.100.1:80", known: []Hint{Services}},
		{name: "its loopback is its own", rules: web, made: own, family: ip4, typ: tcp, bind: "127.0.0.1:8080", want: proceed, place: "own"},
		{name: "an address that it has not", rules: web, made: own, family: ip4, typ: tcp, bind: "10.9.9.9:8080", want: proceed, place: "own"},
		{name: "the endpoint's address", rules: web, made: own, family: ip4, typ: tcp, bind: "198.51.100.1:8080", want: succeeded, place: "host", bound: "198.51.100.1:80", known: []Hint{Services}},
		{name: "another port", rules: web, made: own, family: ip4, typ: tcp, bind: "0.0.0.0:9090", want: proceed, place: "own"},
		{name: "another port, created on the host", rules: web, made: host, family: ip4, typ: tcp, bind: "0.0.0.0:9090", want: proceed, place: "own", known: []Hint{OwnSockets}},
		{name: "the wildcard of both families", rules: web, made: own, family: ip6, typ: tcp, bind: "[::]:8080", want: succeeded, place: "host", bound: "[::ffff:198.51.100.1]:80", known: []Hint{Services}},
		{name: "the wildcard of IPv6 alone", rules: web, made: own, family: ip6, typ: tcp, v6only: true, bind: "[::]:8080", want: proceed, place: "own"},
		{name: "a mapped address", rules: web, made: own, family: ip6, typ: tcp, bind: "[::ffff:0.0.0.0]:8080", want: succeeded, place: "host", bound: "[::ffff:198.51.100.1]:80", known: []Hint{Services}},
		{name: "the other family's address", rules: web, made: own, family: ip4, typ: tcp, bind: "[::]:8080", want: proceed, place: "own"},
		{name: "IPv6", rules: []string{"-i", "[::]:8080=[2001:db8:1::1]:80"}, made: own, family: ip6, typ: tcp, bind: "[::]:8080", want: succeeded, place: "host", bound: "[2001:db8:1::1]:80", known: []Hint{Services}},
		{name: "a client's, any port", rules: everywhere, made: host, family: ip4, typ: udp, bind: "0.0.0.0:0", want: succeeded, place: "host", bound: "0.0.0.0:0"},
		{name: "a client's, and the rule has an address", rules: from, made: host, family: ip4, typ: udp, bind: "0.0.0.0:0", want: succeeded, place: "host", bound: "198.51.100.1:0", known: []Hint{BoundClients}},
		{name: "a client's, a port of its choice", rules: everywhere, made: host, family: ip4, typ: udp, bind: "0.0.0.0:5000", want: proceed, place: "own", known: []Hint{OwnSockets}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, host, own, false, c.rules...)
			number := w.socket(c.made, c.family, c.typ)
			if c.v6only {
				if err := unix.SetsockoptInt(w.program.files[number], unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
					t.Fatal(err)
				}
			}
			answer, err := w.Bind(w.program, number, addr(c.bind))
			if err != nil || answer != c.want {
				t.Errorf("%+v, %v; want %+v", answer, err, c.want)
			}
			place, bound := w.at()
			if place != c.place {
				t.Errorf("the socket is in %q, not %q", place, c.place)
			}
			if want := addr(c.bound); bound.Addr() != want.Addr() && (want.IsValid() || bound.Port() != 0) || want.Port() != 0 && bound != want {
				t.Errorf("bound to %v, not %v", bound, want)
			}
			if !slices.Equal(w.known, c.known) {
				t.Errorf("known: %v, not %v", w.known, c.known)
			}
			if c.want != succeeded {
				return
			}
			// An earlier supervisor may have answered the same call; another call is too late.
			if answer, err := w.Bind(w.program, number, addr(c.bind)); err != nil || answer != succeeded {
				t.Errorf("answered again: %+v, %v", answer, err)
			}
			cookie := w.enforcer.cookie(w.program.files[number])
			b := w.enforcer.bindings[cookie]
			b.Call++
			w.enforcer.bindings[cookie] = b
			if answer, err := w.Bind(w.program, number, addr(c.bind)); err != nil || answer != fail(unix.EINVAL) {
				t.Errorf("bound again: %+v, %v", answer, err)
			}
		})
	}
}

// Only what an ingress rule has bound listens on the host.
func TestWhoListensOnTheHost(t *testing.T) {
	host, own := newPlace(t, host4), newPlace(t)
	rules := append([]string{"-i", "0.0.0.0:8080=198.51.100.1:80"}, everywhere...)
	for _, c := range []struct {
		name  string
		made  *fakePlace
		bind  string
		place string
		known []Hint
	}{
		{"by a rule", host, "0.0.0.0:8080", "host", []Hint{Services}},
		{"not bound", host, "", "own", []Hint{OwnSockets}},
		{"bound as clients are", host, "0.0.0.0:0", "own", []Hint{BoundClients, OwnSockets}},
		{"its own", own, "", "own", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, host, own, false, rules...)
			number := w.socket(c.made, ip4, tcp)
			if c.bind != "" {
				if _, err := w.Bind(w.program, number, addr(c.bind)); err != nil {
					t.Fatal(err)
				}
			}
			if answer, err := w.Listen(w.program, number, 8); err != nil || answer != succeeded {
				t.Errorf("%+v, %v", answer, err)
			}
			place, bound := w.at()
			listens, err := unix.GetsockoptInt(w.program.files[number], unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
			if place != c.place || listens != 1 || bound.Port() == 0 {
				t.Errorf("in %s, listens %d, bound to %v (%v)", place, listens, bound, err)
			}
			if !slices.Equal(w.known, c.known) {
				t.Errorf("known: %v, not %v", w.known, c.known)
			}
		})
	}
}

// What goes wrong while a socket is moved leaves the program its own, and tells it the
// kernel's errno, or, of a fault of ours, nothing.
func TestFaultsOfMoving(t *testing.T) {
	host, own := newPlace(t, host4), newPlace(t)
	ours := errors.New("a fault of ours")
	for _, c := range []struct {
		name  string
		fault func(w *world)
		want  Answer
		err   error
	}{
		{"the kernel makes none", func(w *world) { w.host.made = &keeper.SocketError{Errno: unix.EMFILE} }, fail(unix.EMFILE), nil},
		{"the maker does not start", func(w *world) { w.host.err = ours }, proceed, ours},
		{"no endpoint is there any more", func(w *world) { w.host.err = ErrGone }, proceed, nil},
		{"it is not policed", func(w *world) { w.enforcer.prove = ours }, proceed, ours},
		{"the program cannot be given it", func(w *world) { w.program.install = ours }, proceed, ours},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, host, own, false, everywhere...)
			number := w.socket(own, ip4, tcp)
			c.fault(w)
			answer, err := w.Connect(w.program, number, addr("203.0.113.9:80"))
			if answer != c.want || !errors.Is(err, c.err) {
				t.Errorf("%+v, %v; want %+v, %v", answer, err, c.want, c.err)
			}
			if place, _ := w.at(); place != "own" {
				t.Errorf("the socket is in %s", place)
			}
		})
	}
}

// A host port that is taken is the program's EADDRINUSE, and its socket is as it was.
func TestTakenPort(t *testing.T) {
	host, own := newPlace(t, host4), newPlace(t)
	taken, err := host.Socket(keeper.Kind{Family: ip4, Type: tcp})
	if err == nil {
		err = errors.Join(unix.Bind(taken, sockaddr.Of(addr("198.51.100.1:80"))), unix.Listen(taken, 1))
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(taken)
	w := newWorld(t, host, own, false, "-i", "0.0.0.0:8080=198.51.100.1:80")
	for _, place := range []*fakePlace{own, host} {
		number := w.socket(place, ip4, tcp)
		answer, err := w.Bind(w.program, number, addr("0.0.0.0:8080"))
		if err != nil || answer != fail(unix.EADDRINUSE) {
			t.Errorf("%+v, %v", answer, err)
		}
		if s, err := inspect(w.program.files[number]); err != nil || s.netns != place.Cookie() || s.local.Port() != 0 {
			t.Errorf("the socket is %+v, %v", s, err)
		}
		if len(w.enforcer.bindings) != 0 {
			t.Errorf("bindings are left: %v", w.enforcer.bindings)
		}
	}
}

// Files that are nothing to the engine are left to the kernel.
func TestOtherFiles(t *testing.T) {
	host, own := newPlace(t, host4), newPlace(t)
	w := newWorld(t, host, own, false, everywhere...)
	stream, err := unix.Socket(unix.AF_UNIX, tcp|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	w.program.files[3], w.program.files[4] = stream, null
	for number := 3; number <= 5; number++ { // 5 is not open
		for name, call := range map[string]func(Program, int, netip.AddrPort) (Answer, error){"connect": w.Connect, "send": w.Send, "bind": w.Bind} {
			if answer, err := call(w.program, number, addr("203.0.113.9:80")); err != nil || answer != proceed {
				t.Errorf("%s of %d: %+v, %v", name, number, answer, err)
			}
		}
		if answer, err := w.Listen(w.program, number, 1); err != nil || answer != proceed {
			t.Errorf("listen of %d: %+v, %v", number, answer, err)
		}
	}
	// An earlier supervisor had put the unix socket there, and was done.
	w.program.again = true
	if answer, err := w.Connect(w.program, 3, addr("203.0.113.9:80")); err != nil || answer != succeeded {
		t.Errorf("%+v, %v", answer, err)
	}
}

// What is created on the host first, and which datagrams the front end asks about.
func TestBorn(t *testing.T) {
	host, own := newPlace(t, host4, host6), newPlace(t)
	for _, c := range []struct {
		name           string
		rules          []string
		onlyLoopback   bool
		first4, first6 bool
		datagrams      bool
	}{
		{"no rules", nil, false, false, false, false},
		{"no rules, only a loopback", nil, true, false, false, false},
		{"a default route", everywhere, false, true, false, false},
		{"a default route, only a loopback", everywhere, true, true, true, false},
		{"some destinations", []string{"-e", "10.0.0.0/8=0.0.0.0"}, false, false, false, true},
		{"some destinations, only a loopback", []string{"-e", "10.0.0.0/8=0.0.0.0"}, true, true, true, false},
		{"both families", append([]string{"-e", "::/0=::"}, everywhere...), false, true, true, false},
		{"a server", []string{"-i", "0.0.0.0:80=198.51.100.1:80"}, false, false, false, false},
		{"a server, only a loopback", []string{"-i", "0.0.0.0:80=198.51.100.1:80"}, true, true, true, false},
	} {
		w := newWorld(t, host, own, c.onlyLoopback, c.rules...)
		if f4, f6 := w.HostFirst(ip4), w.HostFirst(ip6); f4 != c.first4 || f6 != c.first6 {
			t.Errorf("%s: on the host first: %v, %v", c.name, f4, f6)
		}
		if sees := SeesDatagrams(w.now.Load().Table, c.onlyLoopback); sees != c.datagrams {
			t.Errorf("%s: sees datagrams %v", c.name, sees)
		}
	}
}

// An engine that takes over a container goes by the rules for which the front ends were made, and not by
// those that are in force by then.
func TestBornBefore(t *testing.T) {
	host, own := newPlace(t, host4, host6), newPlace(t)
	before := newWorld(t, host, own, false, everywhere...)
	now := newWorld(t, host, own, false, "-e", "10.0.0.0/8=0.0.0.0")
	if !before.HostFirst(ip4) || now.HostFirst(ip4) {
		t.Fatal("the two sets of rules do not differ in what is on the host first")
	}
	config := now.Config
	config.Began = before.now.Load().Table
	if next := New(config, now.now.Load().Rules); !next.HostFirst(ip4) || next.HostFirst(ip6) {
		t.Errorf("on the host first: %v, %v", next.HostFirst(ip4), next.HostFirst(ip6))
	}
}

// The next engine leads to the servers of the former one. Both ports are the same, as no
// kernel program is there to show the program its own.
func TestRecover(t *testing.T) {
	host, own := newPlace(t, host4), newPlace(t)
	rules := []string{"-i", "0.0.0.0:80=198.51.100.1:80"}
	w := newWorld(t, host, own, false, rules...)
	if _, err := w.Bind(w.program, w.socket(own, ip4, tcp), addr("0.0.0.0:80")); err != nil {
		t.Fatal(err)
	}
	next := newWorld(t, host, own, false, rules...)
	next.enforcer.served = w.enforcer.served
	for _, want := range []string{"own", "host"} {
		for _, to := range []string{"127.0.0.1:80", "0.0.0.0:80"} { // the same to the kernel
			number := next.socket(own, ip4, tcp)
			if _, err := next.Connect(next.program, number, addr(to)); err != nil {
				t.Fatal(err)
			}
			if place, _ := next.at(); place != want {
				t.Errorf("connect to %s: in %s, not %s", to, place, want)
			}
		}
		if err := next.Recover(); err != nil {
			t.Fatal(err)
		}
	}
	// Front ends learn it too: some come after the next agent, and know nothing.
	for name, w := range map[string]*world{"at the bind": w, "by the next": next} {
		if !slices.Contains(w.known, Services) || !slices.Contains(w.serves, 80) {
			t.Errorf("%s, front ends know %v and of ports %v", name, w.known, w.serves)
		}
	}
}
