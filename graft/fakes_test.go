package graft

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/afgraft"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/netns"
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
	err    error                               // of Maker
	made   error                               // of Socket
	socket func(keeper.Kind) error             // called first, if it is there
	epoll  func(call string, number int) error // of EpollAdd ("add") and EpollDel ("del")
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
	if p.socket != nil {
		if err := p.socket(k); err != nil {
			return -1, err
		}
	}
	err = p.Do(func() error {
		file, err = unix.Socket(k.Family, k.Type|unix.SOCK_CLOEXEC, k.Protocol)
		return err
	})
	return file, err
}

func (p *fakePlace) EpollAdd(_, _, number int, _ uint32, _ uint64) error {
	return p.doEpoll("add", number)
}
func (p *fakePlace) EpollDel(_, _, number int) error { return p.doEpoll("del", number) }

func (p *fakePlace) doEpoll(call string, number int) error {
	if p.epoll == nil {
		return errors.New("no epoll here")
	}
	return p.epoll(call, number)
}

// fakeEnforcer remembers what the kernel programs are told, by socket.
type fakeEnforcer struct {
	sourced  bool
	mark     uint32
	t        *testing.T
	cgroup   uint64
	prove    error
	bindings map[uint64]policy.Binding
	anyPort  map[uint64]bool
	served   []policy.Service
	// translated are the sockets that NoteTranslated was called for.
	translated []uint64
	standIns   map[uint64][3]netip.AddrPort // what StandIn was called with; may be nil
	published  map[netip.AddrPort]uint16    // private ports; nil: UDP is not translated
	serve      error                        // of Serve
	private    map[[2]int]uint16            // by protocol and port
	shares     bool                         // what SharesLoopback says
	steered    map[netip.AddrPort]bool

	states map[uint64]afgraft.State
	queues map[uint64][]afgraft.Option
	names  []string         // endpoints that have a number: their place and 1
	faults map[string]error // by method, of those that have one
}

func (f *fakeEnforcer) cookie(sock int) uint64 {
	f.t.Helper()
	c, err := unix.GetsockoptUint64(sock, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

func (f *fakeEnforcer) Cgroup() uint64 { return f.cgroup }

func (f *fakeEnforcer) Mark() uint32 { return f.mark }

func (f *fakeEnforcer) Sourced() bool { return f.sourced }

func (f *fakeEnforcer) Prove(int) error { return f.prove }

func (f *fakeEnforcer) AllowBind(sock int, b policy.Binding) error {
	if err := f.faults["AllowBind"]; err != nil {
		return err
	}
	f.bindings[f.cookie(sock)] = b
	return nil
}

func (f *fakeEnforcer) ForgetBind(sock int) error {
	delete(f.bindings, f.cookie(sock))
	return nil
}

func (f *fakeEnforcer) Publishes() bool { return f.published != nil }

func (f *fakeEnforcer) Publish(private uint16, at netip.AddrPort) error {
	f.published[at] = private
	return f.faults["Publish"]
}

func (f *fakeEnforcer) Published() ([]netip.AddrPort, error) {
	return slices.Collect(maps.Keys(f.published)), f.faults["Published"]
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

func (f *fakeEnforcer) NoteTranslated(sock int) error {
	f.translated = append(f.translated, f.cookie(sock))
	return nil
}

func (f *fakeEnforcer) StandIn(sock int, port uint16, own, peer netip.AddrPort) error {
	if f.standIns != nil {
		f.standIns[f.cookie(sock)] = [3]netip.AddrPort{localhost4(port), own, peer}
	}
	return f.faults["StandIn"]
}

func (f *fakeEnforcer) AnyPort(sock int) bool { return f.anyPort[f.cookie(sock)] }

func (f *fakeEnforcer) Serve(protocol int, b policy.Binding, netns uint64) error {
	if f.serve != nil {
		return f.serve
	}
	f.served = append(f.served, policy.Service{Protocol: protocol, Port: b.View.Port(), Is4: b.Host.Addr().Unmap().Is4(), Netns: netns})
	return nil
}

func (f *fakeEnforcer) Services() ([]policy.Service, error) { return f.served, nil }

func (f *fakeEnforcer) Steer(uint64, func(func() error) error) error { return f.faults["Steer"] }

func (f *fakeEnforcer) Steered(_ uint64, at netip.AddrPort) (bool, error) { return f.steered[at], nil }

func (f *fakeEnforcer) EndSteering(_ uint64, at netip.AddrPort) error {
	delete(f.steered, at)
	return nil
}

func (f *fakeEnforcer) PrivatePort(protocol int, port, lost, offered uint16, _ func(int) (map[uint16]bool, error)) (uint16, error) {
	key := [2]int{protocol, int(port)}
	if have := f.private[key]; have != 0 && have != lost {
		return have, f.faults["PrivatePort"]
	}
	for other, at := range f.private {
		if at == offered && other != key && other[0] == protocol {
			offered = 0
		}
	}
	if offered != 0 {
		f.private[key] = offered
	}
	return offered, f.faults["PrivatePort"]
}

func (f *fakeEnforcer) IsPrivate(protocol int, port uint16) bool {
	for key, at := range f.private {
		if key[0] == protocol && at == port {
			return true
		}
	}
	return false
}

func (f *fakeEnforcer) SharesLoopback(uint64) bool { return f.shares }

func (f *fakeEnforcer) AFGraft(sock int) (afgraft.State, bool, error) {
	cookie, err := unix.GetsockoptUint64(sock, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil {
		return afgraft.State{}, false, nil
	}
	state, is := f.states[cookie]
	return state, is, f.faults["AFGraft"]
}

func (f *fakeEnforcer) SetAFGraft(sock int, s afgraft.State) error {
	if err := f.faults["SetAFGraft"]; err != nil {
		return err
	}
	f.states[f.cookie(sock)] = s
	return nil
}

func (f *fakeEnforcer) AFGraftOptions(sock int) ([]afgraft.Option, error) {
	return slices.Clone(f.queues[f.cookie(sock)]), f.faults["AFGraftOptions"]
}

func (f *fakeEnforcer) SetAFGraftOptions(sock int, options []afgraft.Option) error {
	if err := f.faults["SetAFGraftOptions"]; err != nil {
		return err
	}
	f.queues[f.cookie(sock)] = options
	return nil
}

func (f *fakeEnforcer) Name(ep *endpoint.Endpoint, is func() bool) (number uint32, err error) {
	if err := f.faults["Name"]; err != nil || !is() {
		return 0, err
	}
	if !slices.Contains(f.names, ep.Name) {
		f.names = append(f.names, ep.Name)
	}
	return uint32(slices.Index(f.names, ep.Name) + 1), nil
}

func (f *fakeEnforcer) Withdraw(ep *endpoint.Endpoint) error {
	f.names = slices.DeleteFunc(f.names, func(name string) bool { return name == ep.Name })
	return nil
}

// freePorts are nobody's.
type freePorts struct{}

func (freePorts) Bind(_ Port, _ func(Port) (bool, error), bind func() error) error { return bind() }
func (freePorts) Reserved(Port, endpoint.PortRange) bool                           { return false }
func (freePorts) Others(Port) bool                                                 { return false }

// fakeProgram has descriptors of its own, by number.
type fakeProgram struct {
	t       *testing.T
	files   map[int]int
	install error
	refuses int           // descriptor that Install refuses, if it is not 0
	watches map[int]Watch // by descriptor; Epoll is made anew for each who asks
	uid     int
	gid     int
	user    error // of User and Capable

	incapable bool
	again     bool
	log       []string // what Install did
}

func (p *fakeProgram) Thread() int                   { return os.Getpid() }
func (p *fakeProgram) Call() uint64                  { return 7 }
func (p *fakeProgram) Again() bool                   { return p.again }
func (p *fakeProgram) User() (uid, gid int, e error) { return p.uid, p.gid, p.user }

func (p *fakeProgram) Capable(int) (bool, error) { return !p.incapable, p.user }

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
			d := Descriptor{Number: number}
			if watch, watched := p.watches[number]; watched {
				if watch.Epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
					return list, err
				}
				d.Watches = append(d.Watches, watch)
			}
			list = append(list, d)
		}
	}
	slices.SortFunc(list, func(a, b Descriptor) int { return a.Number - b.Number })
	return list, err
}

func (p *fakeProgram) Install(number, file int, _ bool) error {
	if p.install != nil && (p.refuses == 0 || p.refuses == number) {
		return p.install
	}
	p.log = append(p.log, fmt.Sprintf("install %d", number))
	return unix.Dup2(file, p.files[number])
}
