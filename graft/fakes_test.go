package graft

import (
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/afgraft"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/keeper"
	"github.com/tsugiki/tsugiki/policy"
)

// Addresses of the host of these tests, and one of nobody.
var (
	host4  = netip.MustParseAddr("198.51.100.1")
	other4 = netip.MustParseAddr("198.51.100.3")
	host6  = netip.MustParseAddr("2001:db8:1::1")
)

// fakePlace makes sockets in a real namespace, in this process.
type fakePlace struct {
	*netns.NS
	err  error // of Maker
	made error // of Socket
}

func (p *fakePlace) Maker() (SocketMaker, error) {
	if p.err != nil {
		return nil, p.err
	}
	return p, nil
}

func (p *fakePlace) Socket(k keeper.Kind) (file int, err error) {
	if p.made != nil {
		return -1, p.made
	}
	err = p.Do(func() error {
		file, err = unix.Socket(k.Family, k.Type|unix.SOCK_CLOEXEC, k.Protocol)
		return err
	})
	return file, err
}

func (p *fakePlace) EpollAdd(int, int, int, uint32, uint64) error { return errors.New("no epoll here") }
func (p *fakePlace) EpollDel(int, int, int) error                 { return errors.New("no epoll here") }

// fakeEnforcer remembers what the kernel programs are told, by socket.
type fakeEnforcer struct {
	t        *testing.T
	prove    error
	bindings map[uint64]policy.Binding
	anyPort  map[uint64]bool
	served   []policy.Service
}

func (f *fakeEnforcer) cookie(sock int) uint64 {
	f.t.Helper()
	c, err := unix.GetsockoptUint64(sock, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

func (f *fakeEnforcer) Prove(int) error { return f.prove }

func (f *fakeEnforcer) AllowBind(sock int, b policy.Binding) error {
	f.bindings[f.cookie(sock)] = b
	return nil
}

func (f *fakeEnforcer) ForgetBind(sock int) error {
	delete(f.bindings, f.cookie(sock))
	return nil
}

func (f *fakeEnforcer) Bound(sock int) bool {
	_, is := f.bindings[f.cookie(sock)]
	return is
}

func (f *fakeEnforcer) BoundTo(sock int) (netip.AddrPort, bool) {
	b, is := f.bindings[f.cookie(sock)]
	return b.Host, is
}

func (f *fakeEnforcer) BoundBy(sock int, call uint64) bool {
	b, is := f.bindings[f.cookie(sock)]
	return is && b.Call == call
}

func (f *fakeEnforcer) BoundByIngress(sock int) bool { return f.bindings[f.cookie(sock)].Ingress }

func (f *fakeEnforcer) NoteAnyPort(sock int, chosen bool) error {
	f.anyPort[f.cookie(sock)] = chosen
	return nil
}

func (f *fakeEnforcer) AnyPort(sock int) bool { return f.anyPort[f.cookie(sock)] }

func (f *fakeEnforcer) Serve(protocol int, b policy.Binding, netns uint64) error {
	f.served = append(f.served, policy.Service{Protocol: protocol, Port: b.View.Port(), Is4: b.Host.Addr().Unmap().Is4(), Netns: netns})
	return nil
}

func (f *fakeEnforcer) Services() ([]policy.Service, error) { return f.served, nil }
func (f *fakeEnforcer) AFGraft(int) (afgraft.State, bool, error) {
	return afgraft.State{}, false, nil
}
func (f *fakeEnforcer) SetAFGraft(int, afgraft.State) error                { return nil }
func (f *fakeEnforcer) AFGraftOptions(int) ([]afgraft.Option, error)       { return nil, nil }
func (f *fakeEnforcer) SetAFGraftOptions(int, []afgraft.Option) error      { return nil }
func (f *fakeEnforcer) Name(*endpoint.Endpoint) (number uint32, err error) { return 0, nil }
func (f *fakeEnforcer) Withdraw(*endpoint.Endpoint) error                  { return nil }

// freePorts are nobody's.
type freePorts struct{}

func (freePorts) Bind(_ Port, _ func(Port) (bool, error), bind func() error) error { return bind() }
func (freePorts) Promised(Port, endpoint.PortRange) bool                           { return false }
func (freePorts) Others(Port) bool                                                 { return false }

// fakeProgram has descriptors of its own, by number.
type fakeProgram struct {
	t       *testing.T
	files   map[int]int
	install error
	again   bool
}

func (p *fakeProgram) Thread() int                   { return os.Getpid() }
func (p *fakeProgram) Call() uint64                  { return 7 }
func (p *fakeProgram) Again() bool                   { return p.again }
func (p *fakeProgram) User() (uid, gid int, e error) { return 0, 0, nil }

func (p *fakeProgram) File(number int) (int, error) {
	file, open := p.files[number]
	if !open {
		return -1, unix.EBADF
	}
	return unix.FcntlInt(uintptr(file), unix.F_DUPFD_CLOEXEC, 0)
}

func (p *fakeProgram) Descriptors(file int) (list []Descriptor, err error) {
	same, err := unix.GetsockoptUint64(file, unix.SOL_SOCKET, unix.SO_COOKIE)
	for number, f := range p.files {
		if cookie, _ := unix.GetsockoptUint64(f, unix.SOL_SOCKET, unix.SO_COOKIE); cookie == same {
			list = append(list, Descriptor{Number: number})
		}
	}
	return list, err
}

func (p *fakeProgram) Install(number, file int, _ bool) error {
	if p.install != nil {
		return p.install
	}
	return unix.Dup2(file, p.files[number])
}

func (p *fakeProgram) Add(file int, _ bool) (int, error) {
	number := len(p.files) + 3
	p.files[number] = file
	return number, nil
}

// world is a container with rules, and a program.
type world struct {
	*Engine
	t         *testing.T
	host, own *fakePlace
	enforcer  *fakeEnforcer
	program   *fakeProgram
	known     []Hint
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
	var set endpoint.Set
	var ingress []policy.Ingress
	var egress []policy.Egress
	p := policy.Parser{Endpoints: &set}
	for i := 0; i < len(rules); i += 2 {
		var err error
		if rules[i] == "-i" {
			var r policy.Ingress
			r, err = p.Ingress(rules[i+1])
			ingress = append(ingress, r)
		} else {
			var r policy.Egress
			r, err = p.Egress(rules[i+1])
			egress = append(egress, r)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	table, err := policy.NewTable(ingress, egress)
	if err != nil {
		t.Fatal(err)
	}
	host.err, host.made, own.err, own.made = nil, nil, nil, nil
	w := &world{
		t: t, host: host, own: own, program: &fakeProgram{t: t, files: map[int]int{}},
		enforcer: &fakeEnforcer{t: t, bindings: map[uint64]policy.Binding{}, anyPort: map[uint64]bool{}},
	}
	w.Engine = New(Config{
		Enforcer: w.enforcer, Own: own, OwnIsLoopback: onlyLoopback, Ports: freePorts{}, Log: slog.New(slog.DiscardHandler),
		Endpoint: func(string) *endpoint.Endpoint { return nil }, Ephemeral: endpoint.PortRange{First: 32768, Last: 60999},
		Know: func(h Hint) {
			if !slices.Contains(w.known, h) {
				w.known = append(w.known, h)
			}
		},
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
