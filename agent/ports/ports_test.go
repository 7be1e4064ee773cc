package ports

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/graft"
)

// hostSockets is a host on which sockets share their ports with whomever they want.
type hostSockets struct {
	t     *testing.T
	ports *Table
	owner map[string]*Holder
	bound map[string][]graft.Port // by container
	tried int
}

func newHostSockets(t *testing.T) *hostSockets {
	return &hostSockets{t: t, ports: New(), owner: map[string]*Holder{}, bound: map[string][]graft.Port{}}
}

func (h *hostSockets) of(name string) *Holder {
	if h.owner[name] == nil {
		h.owner[name] = h.ports.Holder(name)
	}
	return h.owner[name]
}

// taken is what a socket of ours finds out.
func (h *hostSockets) taken(p graft.Port) (bool, error) {
	h.tried++
	return h.has("", p), nil
}

// has tells whether there is a socket at a port, of somebody else than a container.
func (h *hostSockets) has(but string, p graft.Port) bool {
	for name, list := range h.bound {
		for _, other := range list {
			if name != but && slotOf(p) == slotOf(other) && overlap(p, other) {
				return true
			}
		}
	}
	return false
}

// bind binds a socket that shares its port, or one that does not.
func (h *hostSockets) bind(name string, p graft.Port, shares bool) error {
	h.t.Helper()
	var taken func(graft.Port) (bool, error)
	if shares {
		taken = h.taken
	}
	err := h.of(name).Bind(p, taken, func() error {
		if !shares && h.has("", p) {
			return unix.EADDRINUSE
		}
		h.bound[name] = append(h.bound[name], p)
		return nil
	})
	if err == nil && h.has(name, p) {
		h.t.Errorf("%s shares %s with another", name, p.At)
	}
	if err != nil && !errors.Is(err, unix.EADDRINUSE) {
		h.t.Errorf("%s: %v", name, err)
	}
	return err
}

// parsePort reads "udp [::]:80 dual".
func parsePort(text string) graft.Port {
	words := strings.Fields(text)
	p := graft.Port{Netns: 1, Protocol: unix.IPPROTO_TCP, At: netip.MustParseAddrPort(words[1]), Dual: len(words) > 2}
	if words[0] == "udp" {
		p.Protocol = unix.IPPROTO_UDP
	}
	return p
}

// A script's steps are "CONTAINER shares|binds PORT -> ok|taken", "CONTAINER closes",
// "CONTAINER ends" and "CONTAINER reserves ADDR:PORT -> ok|taken". The host is one too.
func TestPorts(t *testing.T) {
	for name, script := range map[string]string{
		"the first has it": `
			a shares tcp 1.1.1.1:80 -> ok
			b shares tcp 1.1.1.1:80 -> taken
			a shares tcp 1.1.1.1:80 -> ok
			b binds tcp 1.1.1.1:80 -> taken
			b shares udp 1.1.1.1:80 -> ok
			b shares tcp 1.1.1.1:81 -> ok
			b shares tcp 2.2.2.2:80 -> ok`,
		"it passes on": `
			a shares tcp 1.1.1.1:80 -> ok
			a closes
			b shares tcp 1.1.1.1:80 -> ok
			b shares tcp 1.1.1.1:80 -> ok
			a shares tcp 1.1.1.1:80 -> taken
			b closes
			a binds tcp 1.1.1.1:80 -> ok
			b shares tcp 1.1.1.1:80 -> taken`,
		"who has had it and ended": `
			a shares udp 1.1.1.1:80 -> ok
			a ends
			b shares udp 1.1.1.1:80 -> ok`,
		"wildcards": `
			a shares tcp 0.0.0.0:80 -> ok
			b shares tcp 1.1.1.1:80 -> taken
			b shares tcp [::]:80 -> ok
			b shares tcp [::1]:80 -> ok
			a shares tcp 1.1.1.1:80 -> ok
			a shares tcp [::]:80 -> taken
			a shares tcp [::]:80dual -> taken`,
		"a wildcard of both families": `
			a shares tcp [::]:80dual -> ok
			b shares tcp 0.0.0.0:80 -> taken
			b shares tcp 1.1.1.1:80 -> taken
			b shares tcp [::1]:80 -> taken
			a closes
			b shares tcp 1.1.1.1:80 -> ok
			a shares tcp [::1]:80 -> ok
			a shares tcp [::]:80dual -> taken`,
		"one's own are in nobody's way": `
			a shares tcp 1.1.1.1:80 -> ok
			b shares tcp 2.2.2.2:80 -> ok
			b closes
			a shares tcp 0.0.0.0:80 -> ok
			b shares tcp 2.2.2.2:80 -> taken`,
		"promises": `
			a reserves 1.1.1.1:80 -> ok
			b reserves 0.0.0.0:80 -> taken
			b shares tcp 1.1.1.1:80 -> taken
			b binds tcp 1.1.1.1:80 -> taken
			b binds udp 0.0.0.0:80 -> taken
			b binds udp [::]:80dual -> taken
			b binds udp [::]:80 -> ok
			b binds udp 2.2.2.2:80 -> ok
			a binds tcp 1.1.1.1:80 -> ok
			a ends
			b shares tcp 1.1.1.1:80 -> ok`,
		"the host has it": `
			host binds tcp 1.1.1.1:80 -> ok
			a shares tcp 1.1.1.1:80 -> taken
			a binds tcp 1.1.1.1:80 -> taken
			host closes
			a shares tcp 1.1.1.1:80 -> ok`,
	} {
		t.Run(name, func(t *testing.T) {
			h := newHostSockets(t)
			for step := range strings.Lines(strings.TrimSpace(script)) {
				h.step(strings.TrimSpace(step))
			}
		})
	}
}

func (h *hostSockets) step(text string) {
	h.t.Helper()
	do, want, _ := strings.Cut(text, " -> ")
	name, do, _ := strings.Cut(do, " ")
	verb, what, _ := strings.Cut(do, " ")
	what = strings.ReplaceAll(what, "dual", " dual")
	var err error
	switch {
	case name == "host" && verb == "binds":
		h.bound[name] = append(h.bound[name], parsePort(what))
	case verb == "shares", verb == "binds":
		err = h.bind(name, parsePort(what), verb == "shares")
	case verb == "reserves":
		err = h.ports.Reserve(name, []Reservation{{Netns: 1, At: netip.MustParseAddrPort(what)}})
	case verb == "closes":
		delete(h.bound, name)
	case verb == "ends":
		delete(h.bound, name)
		delete(h.owner, name)
		h.ports.Forget(name)
	}
	if (err != nil) != (want == "taken") {
		h.t.Errorf("%s: %v", text, err)
	}
}

// To have had a port costs no more than to bind it again, and is forgotten in the end.
func TestPortsOfOne(t *testing.T) {
	h := newHostSockets(t)
	p := parsePort("tcp 1.1.1.1:80")
	for range 3 {
		if err := h.bind("a", p, true); err != nil {
			t.Error(err)
		}
	}
	if h.tried != 1 {
		t.Errorf("a port was tried %d times, want once", h.tried)
	}
	h.ports.Forget("a")
	if len(h.ports.held) != 0 {
		t.Errorf("a container that ended has %v", h.ports.held)
	}
	if err := h.of("a").Bind(p, h.taken, func() error { return unix.EACCES }); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("while its former sockets are there: %v", err)
	}
	delete(h.bound, "a")
	if err := h.of("a").Bind(p, h.taken, func() error { return unix.EACCES }); !errors.Is(err, unix.EACCES) || len(h.ports.held) != 0 {
		t.Errorf("after a bind that failed: %v, %v", err, h.ports.held)
	}
}

// Two that ask at the same moment do not both get a port, and who has it is not held up.
func TestPortsAtTheSameTime(t *testing.T) {
	p := parsePort("udp 1.1.1.1:80")
	for _, tt := range []struct {
		name  string
		first bool // a has had it
		other string
	}{{"a third takes it", false, "c"}, {"the former takes it", true, "a"}} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHostSockets(t)
			if tt.first {
				h.step("a shares udp 1.1.1.1:80 -> ok")
				h.step("a closes")
			}
			slow := func(p graft.Port) (bool, error) { // free, and then no more
				is, err := h.taken(p)
				if err := h.bind(tt.other, p, true); err != nil {
					t.Errorf("%s is held up: %v", tt.other, err)
				}
				return is, err
			}
			err := h.of("b").Bind(p, slow, func() error {
				t.Error("both bind the port")
				return nil
			})
			if !errors.Is(err, unix.EADDRINUSE) {
				t.Error(err)
			}
		})
	}
	h := newHostSockets(t)
	err := h.of("a").Bind(p, h.taken, func() error {
		h.step("b shares udp 1.1.1.1:80 -> taken") // not yet bound, and not free
		h.bound["a"] = append(h.bound["a"], p)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// A socket that is bound and does not listen may lose its port to another container.
func TestPortsOfOthers(t *testing.T) {
	h := newHostSockets(t)
	p := parsePort("tcp 1.1.1.1:80")
	h.step("a shares tcp 1.1.1.1:80 -> ok")
	a, b := h.of("a"), h.of("b")
	if a.Others(p) || !b.Others(p) || !a.Has(p) || b.Has(p) {
		t.Error("who has bound the port is not the one who has it")
	}
	h.step("a closes")
	h.step("b binds tcp 0.0.0.0:80 -> ok")
	if !a.Others(p) || b.Others(p) || a.Has(p) || !b.Has(p) {
		t.Error("who has bound the port last is not the one who has it")
	}
}

// What an agent has not found out about a container that it has taken over does not keep
// that one from its own sockets.
func TestPortsThatAreNotKnown(t *testing.T) {
	h := newHostSockets(t)
	p := parsePort("tcp 1.1.1.1:80")
	h.bound["a"] = append(h.bound["a"], p)
	h.of("a").unknown = true
	h.step("a shares tcp 1.1.1.1:80 -> ok")
	h = newHostSockets(t)
	h.bound["a"] = append(h.bound["a"], p)
	h.of("a").Found(p)
	h.step("b shares tcp 1.1.1.1:80 -> taken")
	h.step("a shares tcp 1.1.1.1:80 -> ok")
}

func TestNarrower(t *testing.T) {
	for _, tt := range [][3]string{
		{"0.0.0.0:80", "1.1.1.1:80", "1.1.1.1:80"},
		{"[::]:80dual", "1.1.1.1:80", "1.1.1.1:80"},
		{"[::]:80dual", "0.0.0.0:80", "0.0.0.0:80"},
		{"[::]:80dual", "[::]:80", "[::]:80"},
		{"[::]:80dual", "[::1]:80", "[::1]:80"},
		{"[::]:80", "[::1]:80", "[::1]:80"},
		{"[::]:80dual", "[::]:80dual", "[::]:80dual"},
		{"1.1.1.1:80", "1.1.1.1:80", "1.1.1.1:80"},
	} {
		var p [3]graft.Port
		for i, text := range tt {
			p[i] = parsePort("tcp " + strings.ReplaceAll(text, "dual", " dual"))
		}
		for _, got := range []graft.Port{narrower(p[0], p[1]), narrower(p[1], p[0])} {
			if got != p[2] {
				t.Errorf("%s and %s have %s in common", tt[0], tt[1], fmt.Sprint(got))
			}
		}
	}
}

// The kernel may choose a port if none that it could choose is another container's.
func TestPortsThatAreReserved(t *testing.T) {
	h := newHostSockets(t)
	h.step("a reserves 1.1.1.1:80 -> ok")
	for _, tt := range []struct {
		name, at    string
		first, last uint16
		want        bool
	}{
		{"b", "udp 1.1.1.1:0", 80, 80, true},
		{"b", "tcp 0.0.0.0:0", 1, 1000, true},
		{"b", "tcp [::]:0 dual", 1, 1000, true},
		{"a", "udp 1.1.1.1:0", 80, 80, false},
		{"b", "udp 1.1.1.1:0", 81, 90, false},
		{"b", "udp 2.2.2.2:0", 1, 1000, false},
		{"b", "tcp [::]:0", 1, 1000, false},
	} {
		if got := h.of(tt.name).Reserved(parsePort(tt.at), endpoint.PortRange{First: tt.first, Last: tt.last}); got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
	}
	elsewhere := parsePort("tcp 1.1.1.1:0")
	elsewhere.Netns++
	if h.of("b").Reserved(elsewhere, endpoint.PortRange{First: 80, Last: 80}) {
		t.Error("a promise is of another namespace too")
	}
}
