package graft

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// A registration in an epoll is made for the new socket before a descriptor is replaced, and
// taken from the old one after: in between there is one too many, and never one too few.
func TestEpollsFollow(t *testing.T) {
	host, own := newPlace(t, host4), newPlace(t)
	ours := errors.New("a fault of ours")
	for _, c := range []struct {
		name    string
		adds    error
		deletes error
		install error

		log []string
		err error
	}{
		{name: "all goes well", log: []string{"install 3", "add 4", "install 4", "del 4"}},
		{name: "another descriptor's epoll is the same", adds: unix.EEXIST, log: []string{"install 3", "add 4", "install 4", "del 4"}},
		{name: "the old one is gone", deletes: unix.ENOENT, log: []string{"install 3", "add 4", "install 4", "del 4"}},
		{name: "it cannot be added", adds: ours, log: []string{"install 3", "add 4"}, err: ours},
		{name: "it cannot be deleted", deletes: ours, log: []string{"install 3", "add 4", "install 4", "del 4"}, err: ours},
		{name: "the descriptor cannot be replaced", install: ours, log: []string{"install 3", "add 4"}, err: ours},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, host, own, false, everywhere...)
			number := w.socket(own, ip4, tcp)
			w.program.watches[4] = Watch{Events: unix.EPOLLIN, Data: 9}
			w.program.install, w.program.refuses = c.install, 4
			host.epoll = func(call string, number int) error {
				w.program.log = append(w.program.log, fmt.Sprintf("%s %d", call, number))
				if call == "add" {
					return c.adds
				}
				return c.deletes
			}
			answer, err := w.Connect(w.program, number, addr("203.0.113.9:80"))
			if answer != proceed || !errors.Is(err, c.err) {
				t.Errorf("%+v, %v; want %v", answer, err, c.err)
			}
			if !slices.Equal(w.program.log, c.log) {
				t.Errorf("%v, want %v", w.program.log, c.log)
			}
		})
	}
}

// lostProgram has closed the number of its call by the time that its descriptors are listed.
type lostProgram struct{ *fakeProgram }

func (p lostProgram) Descriptors(file int) ([]Descriptor, error) {
	list, err := p.fakeProgram.Descriptors(file)
	return slices.DeleteFunc(list, func(d Descriptor) bool { return d.Number == 3 }), err
}

// If the number of a call is not there any more, nothing is replaced, and the call is not answered as if it were.
func TestLostNumber(t *testing.T) {
	host, own := newPlace(t, host4), newPlace(t)
	for name, ask := range map[string]func(w *world, p Program, number int) (Answer, error){
		"bind": func(w *world, p Program, number int) (Answer, error) { return w.Bind(p, number, addr("0.0.0.0:8081")) },
		"connect": func(w *world, p Program, number int) (Answer, error) {
			return w.Connect(p, number, addr("203.0.113.9:80"))
		},
	} {
		w := newWorld(t, host, own, false, "-i", "0.0.0.0:8081=198.51.100.1:18081", "-e", "0.0.0.0/0=0.0.0.0")
		number := w.socket(own, ip4, tcp)
		if answer, err := ask(w, lostProgram{w.program}, number); !errors.Is(err, ErrClosed) || answer != proceed {
			t.Errorf("%s: %+v, %v; want %v", name, answer, err, ErrClosed)
		}
		if place, _ := w.at(); place != "own" || len(w.program.log) > 0 {
			t.Errorf("%s: the socket is in %s after %v", name, place, w.program.log)
		}
	}
}

// What a program has set on its socket goes with it: options, flags and a filter.
func TestOptionsGoAlong(t *testing.T) {
	host, own := newPlace(t, host4), newPlace(t)
	w := newWorld(t, host, own, false, everywhere...)
	number := w.socket(own, ip4, tcp)
	file := w.program.files[number]
	set := []struct{ level, name, value int }{
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{unix.SOL_SOCKET, unix.SO_RCVBUF, 20000},
		{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
		{unix.IPPROTO_IP, unix.IP_TTL, 9},
		{unix.SOL_SOCKET, unix.SO_PRIORITY, 4},
	}
	var want []int
	for _, o := range set {
		must(t, unix.SetsockoptInt(file, o.level, o.name, o.value))
		v, err := unix.GetsockoptInt(file, o.level, o.name)
		must(t, err)
		want = append(want, v)
	}
	must(t, unix.SetNonblock(file, true))
	// ld len; ret a: what passes everything.
	filter := []unix.SockFilter{{Code: 0x80}, {Code: 0x16}}
	must(t, unix.SetsockoptSockFprog(file, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 2, Filter: &filter[0]}))

	if answer, err := w.Connect(w.program, number, addr("203.0.113.9:80")); err != nil || answer != proceed {
		t.Fatal(answer, err)
	}
	if place, _ := w.at(); place != "host" {
		t.Fatalf("in %s", place)
	}
	for i, o := range set {
		if got, err := unix.GetsockoptInt(file, o.level, o.name); got != want[i] || err != nil {
			t.Errorf("option %d of level %d is %d, %v; want %d", o.name, o.level, got, err, want[i])
		}
	}
	if flags, err := unix.FcntlInt(uintptr(file), unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK == 0 {
		t.Errorf("flags %#x, %v", flags, err)
	}
	code := make([]unix.SockFilter, 2)
	if n, err := getFilter(file, code); n != 2 || err != nil || !slices.Equal(code, filter) {
		t.Errorf("filter %v, %v", code[:n], err)
	}
}

// A client whose rule has another source than the one that it is bound to on the host gets a
// new socket there, which has the same port although the old one is open.
func TestClientIsBoundAnew(t *testing.T) {
	host, own := newPlace(t, host4, other4), newPlace(t)
	rules := []string{"-e", "0.0.0.0/0=0.0.0.0", "-e", "203.0.113.0/24=198.51.100.3"}
	w := newWorld(t, host, own, false, rules...)
	number := w.socket(host, ip4, udp)
	if answer, err := w.Bind(w.program, number, addr("0.0.0.0:0")); err != nil || answer != succeeded {
		t.Fatal(answer, err)
	}
	_, before := w.at()
	old := w.enforcer.cookie(w.program.files[number])
	if answer, err := w.Connect(w.program, number, addr("203.0.113.9:53")); err != nil || answer != proceed {
		t.Fatal(answer, err)
	}
	place, after := w.at()
	if place != "host" || after.Addr() != other4 || after.Port() != before.Port() || w.enforcer.cookie(w.program.files[number]) == old {
		t.Errorf("from %v to %v in %s", before, after, place)
	}
	for _, name := range []int{unix.SO_REUSEADDR, unix.SO_REUSEPORT} {
		if on, err := unix.GetsockoptInt(w.program.files[number], unix.SOL_SOCKET, name); on != 0 || err != nil {
			t.Errorf("option %d is %d, %v", name, on, err)
		}
	}
}
