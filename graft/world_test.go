package graft

import (
	"log/slog"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/afgraft"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/keeper"
	"github.com/tsugiki/tsugiki/policy"
)

// world is a container with rules, and a program.
type world struct {
	*Engine
	t         *testing.T
	host, own *fakePlace
	enforcer  *fakeEnforcer
	program   *fakeProgram
	known     []Hint
	serves    []uint16
	endpoints map[string]*endpoint.Endpoint // that the program may name, or others
}

// newPlace makes a namespace with addresses, besides those of its loopback.
func newPlace(t *testing.T, addrs ...netip.Addr) *fakePlace {
	t.Helper()
	return &fakePlace{NS: testkit.NewLoopback(t, addrs...)}
}

// newWorld makes a container with rules as a user writes them: "-i RULE" and "-e RULE".
// Its own namespace has only a loopback, if that is said.
func newWorld(t *testing.T, host, own *fakePlace, onlyLoopback bool, rules ...string) *world {
	t.Helper()
	table := tableOf(t, &endpoint.Set{}, rules...)
	for _, p := range []*fakePlace{host, own} {
		*p = fakePlace{NS: p.NS}
	}
	w := &world{
		t: t, host: host, own: own, program: &fakeProgram{t: t, files: map[int]int{}, watches: map[int]Watch{}},
		enforcer: &fakeEnforcer{
			t: t, bindings: map[uint64]policy.Binding{}, anyPort: map[uint64]bool{}, states: map[uint64]afgraft.State{},
			queues: map[uint64][]afgraft.Option{}, faults: map[string]error{}, private: map[[2]int]uint16{},
		},
		endpoints: map[string]*endpoint.Endpoint{},
	}
	w.Engine = New(Config{
		Enforcer: w.enforcer, Own: own, OwnIsLoopback: onlyLoopback, Ports: freePorts{}, Log: slog.New(slog.DiscardHandler),
		Endpoint: func(name string) *endpoint.Endpoint { return w.endpoints[name] }, Ephemeral: endpoint.PortRange{First: 32768, Last: 60999},
		Know: func(h Hint) {
			if !slices.Contains(w.known, h) {
				w.known = append(w.known, h)
			}
		},
		Serves: func(port uint16) { w.serves = append(w.serves, port) },
	}, Rules{Table: table, Host: map[string]Place{"": host}})
	t.Cleanup(func() {
		for _, f := range w.program.files {
			unix.Close(f)
		}
	})
	return w
}

// socket gives the program one of a place, and a second descriptor of it.
func (w *world) socket(at *fakePlace, family, typ int) (number int) {
	w.t.Helper()
	file, err := at.Socket(keeper.Kind{Family: family, Type: typ})
	if err != nil {
		w.t.Fatal(err)
	}
	second, err := unix.Dup(file)
	if err != nil {
		w.t.Fatal(err)
	}
	w.program.files[3], w.program.files[4] = file, second
	return 3
}

// at says where the program's socket is, and what it is bound to there. Both of its
// descriptors are of the same one.
func (w *world) at() (place string, bound netip.AddrPort) {
	w.t.Helper()
	s, err := inspect(w.program.files[3])
	if err != nil {
		w.t.Fatal(err)
	}
	if second, err := inspect(w.program.files[4]); err != nil || second.cookie != s.cookie {
		w.t.Errorf("the second descriptor is of another socket: %v", err)
	}
	switch s.netns {
	case w.host.Cookie():
		place = "host"
	case w.own.Cookie():
		place = "own"
	}
	return place, s.local
}

// rule has the engine decide by two rules that lead to endpoints of the program's.
func (w *world) rule(egress, ingress string) {
	w.t.Helper()
	var set endpoint.Set
	for _, ep := range w.endpoints {
		if err := set.Add(ep); err != nil {
			w.t.Fatal(err)
		}
	}
	in, err := policy.ParseIngress(ingress, &set)
	if err != nil {
		w.t.Fatal(err)
	}
	out, err := policy.ParseEgress(egress, &set)
	if err != nil {
		w.t.Fatal(err)
	}
	table, err := policy.NewTable([]policy.Ingress{in}, []policy.Egress{out})
	if err != nil {
		w.t.Fatal(err)
	}
	w.Update(Rules{Table: table, Host: map[string]Place{"": w.host}})
}
