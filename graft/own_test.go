package graft

import (
	"errors"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/keeper"
	"github.com/tsugiki/tsugiki/policy"
)

// ownWorld is a container whose own namespace has the address of the host's that its rule leads to:
// without kernel programs a socket shows this one.
func ownWorld(t *testing.T, rule string) *world {
	t.Helper()
	w := newWorld(t, newPlace(t, host4), newPlace(t, host4, other4), false, "-i", rule)
	t.Cleanup(w.CloseOwn)
	dir, err := cgroup.Own() // of the sockets that this process makes
	var st unix.Stat_t
	if err == nil {
		err = unix.Stat(dir, &st)
	}
	if err != nil {
		t.Fatal(err)
	}
	w.enforcer.cgroup = st.Ino
	return w
}

var keeperTCP = keeper.Kind{Family: ip4, Type: tcp, Protocol: unix.IPPROTO_TCP}

const ownRule = "0.0.0.0:80+own=198.51.100.1:80"

// listening has the program listen where the rule leads.
func (w *world) listening() (number int) {
	w.t.Helper()
	number = w.socket(w.host, ip4, tcp)
	if answer, err := w.Bind(w.program, number, addr("198.51.100.1:80")); err != nil || answer != succeeded {
		w.t.Fatalf("bind: %+v, %v", answer, err)
	}
	if answer, err := w.Listen(w.program, number, 5); err != nil || answer != succeeded {
		w.t.Fatalf("listen: %+v, %v", answer, err)
	}
	return number
}

// connect connects a socket of a place, and returns it with its name.
func connect(t *testing.T, at *fakePlace, to string) (file int, name netip.AddrPort, err error) {
	t.Helper()
	file, err = at.Socket(keeperTCP)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(file) })
	patience := unix.NsecToTimeval(testkit.Patience.Nanoseconds())
	if err := unix.SetsockoptTimeval(file, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience); err != nil {
		t.Fatal(err)
	}
	if err := unix.Connect(file, sockaddr.Of(addr(to))); err != nil {
		return file, name, err
	}
	name, err = localName(file)
	if err != nil {
		t.Fatal(err)
	}
	return file, name, nil
}

// accepted waits for a connection of the program's listener.
func (w *world) accepted(number int) (file int, peer netip.AddrPort) {
	w.t.Helper()
	testkit.Eventually(w.t, func() error {
		c, waits, answer, err := w.Accept(w.program, number)
		if err != nil || answer != (Answer{}) {
			w.t.Fatalf("accept: %+v, %v", answer, err)
		}
		if waits {
			return errors.New("there is no connection")
		}
		file, peer = c.File, c.Peer
		return nil
	})
	w.t.Cleanup(func() { unix.Close(file) })
	return file, peer
}

// A program gets connections of both namespaces by one listener, with their peers' names and with
// what it has set on the listener.
func TestAcceptOfBothNamespaces(t *testing.T) {
	w := ownWorld(t, ownRule)
	number := w.listening()
	for option, value := range map[int]int{unix.TCP_DEFER_ACCEPT: 600, unix.TCP_KEEPIDLE: 77} { // after listen(2), as nginx does
		if err := unix.SetsockoptInt(w.program.files[number], unix.IPPROTO_TCP, option, value); err != nil {
			t.Fatal(err)
		}
	}
	for _, from := range []*fakePlace{w.own, w.host, w.own} {
		client, name, err := connect(t, from, "198.51.100.1:80")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Write(client, []byte("x")); err != nil {
			t.Fatal(err)
		}
		file, peer := w.accepted(number)
		if peer != name {
			t.Errorf("the peer is %v, want %v", peer, name)
		}
		s, err := inspect(file)
		if err != nil || s.netns != from.Cookie() || s.local != addr("198.51.100.1:80") {
			t.Errorf("accepted %+v, %v", s, err)
		}
		idle, _ := unix.GetsockoptInt(file, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)
		flags, _ := unix.FcntlInt(uintptr(file), unix.F_GETFL, 0)
		if idle != 77 || flags&unix.O_NONBLOCK != 0 {
			t.Errorf("TCP_KEEPIDLE is %d, flags %#x", idle, flags)
		}
		var text [8]byte
		if n, err := unix.Read(file, text[:]); n != 1 || text[0] != 'x' {
			t.Errorf("reads %q, %v", text[:max(n, 0)], err)
		}
	}
	if flags, _ := unix.FcntlInt(uintptr(w.program.files[number]), unix.F_GETFL, 0); flags&unix.O_NONBLOCK != 0 {
		t.Error("the listener does not wait any more")
	}
}

// While one call takes a connection off a listener that waits, that does not wait. Another call waits
// nonetheless.
func TestAcceptBesideAnother(t *testing.T) {
	w := ownWorld(t, ownRule)
	number := w.listening()
	setWaiting := func(waits bool) {
		if err := unix.SetNonblock(w.program.files[number], !waits); err != nil {
			t.Fatal(err)
		}
	}
	w.accepting.Lock() // as a call does
	setWaiting(false)
	type outcome struct {
		waits  bool
		answer Answer
		err    error
	}
	other := make(chan outcome, 1)
	go func() {
		var o outcome
		_, o.waits, o.answer, o.err = w.Accept(w.program, number)
		other <- o
	}()
	testkit.Eventually(t, func() error {
		select {
		case o := <-other:
			t.Fatalf("accept did not wait for the other call: %+v", o)
		default:
		}
		if !waitsForLock("acceptAtOnce") {
			return errors.New("accept does not wait for the other call yet")
		}
		return nil
	})
	setWaiting(true)
	w.accepting.Unlock()
	if o := <-other; o != (outcome{waits: true}) {
		t.Errorf("accept says %+v, want that it waits", o)
	}
}

// waitsForLock tells whether a goroutine waits for a lock that a method of the engine takes.
func waitsForLock(method string) bool {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for stack := range strings.SplitSeq(string(stacks), "\n\n") {
		first, calls, _ := strings.Cut(stack, "\n")
		if strings.Contains(first, "[sync.Mutex.Lock") && strings.Contains(calls, "graft.(*Engine)."+method+"(") {
			return true
		}
	}
	return false
}

// Without +own, and at another port, the container's own namespace is left alone.
func TestOwnListenerIsAsked(t *testing.T) {
	for _, rule := range []string{"0.0.0.0:80=198.51.100.1:80", "0.0.0.0:80-81=198.51.100.1"} {
		w := ownWorld(t, rule)
		number := w.listening()
		if _, _, err := connect(t, w.own, "198.51.100.1:80"); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%s: %v", rule, err)
		}
		if c, waits, answer, err := w.Accept(w.program, number); c != nil || waits || answer != (Answer{}) || err != nil {
			t.Errorf("%s: accept is not the kernel's: %v, %v, %+v, %v", rule, c, waits, answer, err)
		}
	}
}

// A server at [::] of a host whose loopback has no IPv6 gets what comes to the container's own address.
func TestOwnListenerWithoutIPv6Loopback(t *testing.T) {
	w := ownWorld(t, "[::]:80+own=[::]:80")
	if err := w.host.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv6/conf/lo/disable_ipv6", []byte("1"), 0)
	}); err != nil {
		t.Fatal(err)
	}
	number := w.socket(w.host, unix.AF_INET6, tcp)
	if answer, err := w.Bind(w.program, number, addr("[::]:80")); err != nil || answer != succeeded {
		t.Fatalf("bind: %+v, %v", answer, err)
	}
	if answer, err := w.Listen(w.program, number, 5); err != nil || answer != succeeded {
		t.Fatalf("listen: %+v, %v", answer, err)
	}
	_, name, err := connect(t, w.own, "198.51.100.1:80")
	if err != nil {
		t.Fatal(err)
	}
	if _, peer := w.accepted(number); peer.Addr().Unmap() != name.Addr() || peer.Port() != name.Port() {
		t.Errorf("the peer is %v, want %v", peer, name)
	}
}

// A port that somebody has in the container's own namespace is taken.
func TestOwnPortIsTaken(t *testing.T) {
	w := ownWorld(t, ownRule)
	taken, err := w.own.Socket(keeperTCP)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(taken)
	if err := errors.Join(unix.Bind(taken, sockaddr.Of(addr("0.0.0.0:80"))), unix.Listen(taken, 1)); err != nil {
		t.Fatal(err)
	}
	number := w.socket(w.host, ip4, tcp)
	if answer, err := w.Bind(w.program, number, addr("198.51.100.1:80")); err != nil || answer != succeeded {
		t.Fatalf("bind: %+v, %v", answer, err)
	}
	if answer, err := w.Listen(w.program, number, 5); err != nil || answer != fail(unix.EADDRINUSE) {
		t.Errorf("listen: %+v, %v", answer, err)
	}
}

// Once the program has closed its listener, connections are reset, and the port is free again. Who has
// the host's port by then gets no marker.
func TestOwnListenerEnds(t *testing.T) {
	w := ownWorld(t, ownRule)
	w.enforcer.cgroup++ // the sockets of this process are a stranger's
	w.listening()
	for number, file := range w.program.files {
		unix.Close(file)
		delete(w.program.files, number)
	}
	stranger, err := w.host.Socket(keeperTCP)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(stranger)
	if err := errors.Join(unix.Bind(stranger, sockaddr.Of(addr("198.51.100.1:80"))), unix.Listen(stranger, 5)); err != nil {
		t.Fatal(err)
	}
	w.own.ends(t)
	_, name, err := connect(t, w.host, "198.51.100.1:80") // the sentinel
	if err != nil {
		t.Fatal(err)
	}
	file, from, err := acceptFrom(stranger)
	if err != nil || from != name {
		t.Errorf("the stranger gets a connection from %v, %v", from, err)
	}
	unix.Close(file)
}

// ends waits until connections are refused, and checks that those before are reset.
func (p *fakePlace) ends(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, func() error {
		client, _, err := connect(t, p, "198.51.100.1:80")
		if errors.Is(err, unix.ECONNREFUSED) {
			return nil
		}
		if err != nil {
			t.Fatal(err)
		}
		if n, err := unix.Read(client, make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%d bytes, %v", n, err)
		}
		return errors.New("connected")
	})
}

// A socket of an earlier connection from a marker's address is no marker: its peer has reset it.
func TestClosedConnectionIsNoMarker(t *testing.T) {
	w := ownWorld(t, ownRule)
	number := w.listening()
	client, name, err := connect(t, w.host, "198.51.100.1:80")
	if err != nil {
		t.Fatal(err)
	}
	own := w.own4()
	own.mu.Lock()
	own.markers[name] = marked{conn: -1}
	own.mu.Unlock()
	reset(client)
	file, peer := w.accepted(number)
	if s, err := inspect(file); err != nil || s.netns != w.host.Cookie() || peer != name {
		t.Errorf("%+v, %v, %v", s, peer, err)
	}
	if !own.drop(name) {
		t.Error("the marker was taken")
	}
}

// own4 is the only ownListener.
func (w *world) own4() *ownListener {
	for _, l := range w.Engine.own {
		return l
	}
	w.t.Fatal("there is no listener in the container's own namespace")
	return nil
}

// The next engine serves again what listens, with what the program knows.
func TestRecoverOwn(t *testing.T) {
	w := ownWorld(t, ownRule)
	number := w.listening()
	w.CloseOwn()
	w.own.ends(t)
	w.enforcer.served = []policy.Service{{Protocol: unix.IPPROTO_TCP, Port: 80, Is4: true, Host: addr("198.51.100.1:80"), Netns: w.host.Cookie()}}
	if err := w.Recover(); err != nil {
		t.Fatal(err)
	}
	_, name, err := connect(t, w.own, "198.51.100.3:80")
	if err != nil {
		t.Fatal(err)
	}
	if _, peer := w.accepted(number); peer != name {
		t.Errorf("the peer is %v, want %v", peer, name)
	}
}

// resets checks that a connection from an address of the container's own namespace is reset.
func (w *world) resets(from string) {
	w.t.Helper()
	file, err := w.own.Socket(keeperTCP)
	if err != nil {
		w.t.Fatal(err)
	}
	defer unix.Close(file)
	patience := unix.NsecToTimeval(testkit.Patience.Nanoseconds())
	err = errors.Join(unix.SetsockoptTimeval(file, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience), unix.Bind(file, sockaddr.Of(addr(from+":0"))))
	if err != nil {
		w.t.Fatal(err)
	}
	err = unix.Connect(file, sockaddr.Of(addr("198.51.100.1:80")))
	if err == nil {
		for err = unix.EINTR; errors.Is(err, unix.EINTR); { // a read with a limit of time is not restarted
			_, err = unix.Read(file, make([]byte, 1))
		}
	}
	if !errors.Is(err, unix.ECONNRESET) {
		w.t.Errorf("from %s: %v, want ECONNRESET", from, err)
	}
}

// At the container's own address the sources of a rule count too. The container itself, and the host,
// are let in. When the rule is withdrawn, nobody else is.
func TestSourcesAtOwnAddress(t *testing.T) {
	w := ownWorld(t, ownRule)
	number := w.listening()
	takes := func(from string) {
		t.Helper()
		file, err := w.own.Socket(keeperTCP)
		if err == nil {
			t.Cleanup(func() { unix.Close(file) })
			err = errors.Join(unix.Bind(file, sockaddr.Of(addr(from+":0"))), unix.Connect(file, sockaddr.Of(addr("198.51.100.1:80"))))
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, peer := w.accepted(number); peer.Addr().String() != from {
			t.Errorf("the peer is %v, want %s", peer, from)
		}
	}
	takes("198.51.100.3")
	update := func(rules ...string) {
		w.Update(Rules{Table: tableOf(t, &endpoint.Set{}, rules...), Host: map[string]Place{"": w.host}})
	}
	w.enforcer.sourced = true // what the kernel knows from the first sources on
	update("-i", "0.0.0.0:80+own+from:198.51.100.8=198.51.100.1:80")
	w.resets("198.51.100.3")
	takes("198.51.100.1") // the address of the server, and one of the host's
	update("-i", "0.0.0.0:80+own+from:198.51.100.3=198.51.100.1:80")
	takes("198.51.100.3")
	update()
	w.resets("198.51.100.3")
}

// A server at all addresses has the sources of the rule of its peer's family.
func TestSourcesOfBothFamiliesAtOwnAddress(t *testing.T) {
	w := newWorld(t, newPlace(t, host4, host6), newPlace(t, host4, host6), false,
		"-i", "0.0.0.0:80+own+from:10.0.0.0/8=198.51.100.1:80", "-i", "[::]:80+own+from:2001:db8:7::/48=["+host6.String()+"]:80")
	l := w.newOwnListener(w.host, addr("198.51.100.1:80"))
	l.view = addr("[::]:80")
	expect := func(when string, want map[string]bool) {
		t.Helper()
		for from, want := range want {
			from := netip.MustParseAddr(from)
			if got := l.admits(from, -1); got != want {
				t.Errorf("%s: %s is let in: %v", when, from, got)
			}
		}
	}
	expect("a rule of each", map[string]bool{"::ffff:10.0.0.1": true, "::ffff:192.0.2.7": false, "2001:db8:7::1": true, "2001:db8:8::1": false})
	w.Update(Rules{Host: map[string]Place{"": w.host}, Table: tableOf(t, &endpoint.Set{},
		"-i", "0.0.0.0:80+own+from:10.0.0.0/8=198.51.100.1:80", "-i", "[::]:80+own=["+host6.String()+"]:80")})
	expect("IPv6 without sources", map[string]bool{"::ffff:10.0.0.1": true, "::ffff:192.0.2.7": false, "2001:db8:8::1": true})
	w.Update(Rules{Host: map[string]Place{"": w.host}, Table: tableOf(t, &endpoint.Set{},
		"-i", "0.0.0.0:80+own=198.51.100.1:80", "-i", "[::]:80+own+from:2001:db8:7::/48=["+host6.String()+"]:80")})
	expect("IPv4 without sources", map[string]bool{"::ffff:192.0.2.7": true, "2001:db8:7::1": true, "2001:db8:8::1": false})
}

// What stands for a connection has the container's mark, which the sources of rules let in.
func TestMarkerHasMark(t *testing.T) {
	w := ownWorld(t, ownRule)
	w.enforcer.mark = 1<<30 | 7
	l := w.newOwnListener(w.host, addr("198.51.100.1:80"))
	var priority int
	err := w.host.Do(func() error {
		file, err := l.ownSocket()
		if err != nil {
			return err
		}
		defer unix.Close(file)
		priority, err = unix.GetsockoptInt(file, unix.SOL_SOCKET, unix.SO_PRIORITY)
		return err
	})
	if err != nil || priority != 1<<30|7 {
		t.Errorf("priority %#x, %v", priority, err)
	}
}
