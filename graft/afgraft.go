package graft

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/keeper"
	"github.com/tsugiki/tsugiki/policy"
)

// Programs that are written for AF_GRAFT name their endpoints themselves
// (Nakamura et al., ANCS 2018; include/tsugiki/graft.h).
//
// # Theory of operation
//
// socket(AF_GRAFT) is answered with a stand-in: an IP socket of the container's own
// namespace, so that poll, dup, fork, exec and options work on it. It is marked in
// the kernel (policy.AFGraft). What the program binds tells the endpoint, which has to
// be a nameable one, and with it family and place: a socket made there takes the stand-in's place, as in a swap.
// A stand-in that connects or sends is bound to the endpoint default-source first.
// From then on it is a host socket, and the kernel carries on with its calls: the
// kernel programs let it connect through its endpoint to all that is not special.

// DefaultSource is the endpoint of who connects without having bound.
const DefaultSource = "default-source"

// graftLocks is how many AF_GRAFT sockets can be changed at the same time.
const graftLocks = 64

// Socket answers socket(AF_GRAFT).
func (e *Engine) Socket(p Program, typ, protocol int) (Answer, error) {
	kind := keeper.Kind{Family: unix.AF_INET6, Type: typ &^ (unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK)}
	switch kind.Type {
	case unix.SOCK_STREAM:
		kind.Protocol = unix.IPPROTO_TCP
	case unix.SOCK_DGRAM:
		kind.Protocol = unix.IPPROTO_UDP
	default:
		return fail(unix.ESOCKTNOSUPPORT), nil
	}
	if protocol != 0 && protocol != kind.Protocol {
		return fail(unix.EPROTONOSUPPORT), nil
	}
	kind.Type |= typ & unix.SOCK_NONBLOCK
	k, err := e.Own.Maker()
	if err != nil {
		return Answer{}, err
	}
	file, err := k.Socket(kind)
	if errno, refused := kernelRefusal(err); refused && errno == unix.EAFNOSUPPORT {
		kind.Family = unix.AF_INET // a kernel without IPv6
		file, err = k.Socket(kind)
	}
	if err != nil {
		return answerFor(err)
	}
	defer unix.Close(file)
	if err := e.Enforcer.SetAFGraft(file, policy.AFGraft{}); err != nil {
		return Answer{}, err
	}
	e.Know(OwnSockets)
	e.Know(AFGraftSockets)
	number, err := p.Add(file, typ&unix.SOCK_CLOEXEC != 0)
	var errno unix.Errno
	switch {
	case errors.As(err, &errno) && (errno == unix.EMFILE || errno == unix.ENFILE || errno == unix.ENOMEM):
		return fail(errno), nil // the program's own limits
	case err != nil:
		return Answer{}, err
	}
	e.Log.Debug("stands in", "pid", p.Thread(), "fd", number)
	return Answer{Action: Succeed, Value: number}, nil
}

// DelayedOption is a socket option that waits to be set, or the result of one
// that was.
type DelayedOption = policy.AFGraftOption

// AFGraftSocket is an AF_GRAFT socket of the program for the time of one call. No
// other call changes what belongs to it meanwhile.
type AFGraftSocket struct {
	e      call
	p      Program
	number int
	s      *socket
	state  policy.AFGraft
	unlock func()
}

// AFGraftState returns what belongs to an AF_GRAFT socket of the program, or false if
// the descriptor is none.
func (e *Engine) AFGraftState(p Program, number int) (policy.AFGraft, bool, error) {
	file, err := p.File(number)
	if err != nil {
		return policy.AFGraft{}, false, ignoreBadFile(err)
	}
	defer unix.Close(file)
	return e.Enforcer.AFGraft(file)
}

// AFGraft takes an AF_GRAFT socket of the program, which the caller has to Close,
// or returns nil if the descriptor is none.
func (e *Engine) AFGraft(p Program, number int) (*AFGraftSocket, error) {
	file, err := p.File(number)
	if err != nil {
		return nil, ignoreBadFile(err)
	}
	g, err := e.graft(p, number, file)
	if g == nil {
		unix.Close(file)
	}
	return g, err
}

func (e *Engine) graft(p Program, number, file int) (*AFGraftSocket, error) {
	if _, is, err := e.Enforcer.AFGraft(file); !is {
		return nil, err
	}
	s, err := inspect(file)
	if err != nil {
		return nil, err
	}
	if s.cookie, err = unix.GetsockoptUint64(file, unix.SOL_SOCKET, unix.SO_COOKIE); err != nil {
		return nil, fmt.Errorf("inspect socket: %w", err)
	}
	e.makeGraft.Do(func() { e.graftMu = new([graftLocks]sync.Mutex) })
	mu := &e.graftMu[s.cookie%graftLocks]
	mu.Lock()
	state, _, err := e.Enforcer.AFGraft(file)
	if err != nil {
		mu.Unlock()
		return nil, err
	}
	return &AFGraftSocket{e: e.begin(), p: p, number: number, s: s, state: state, unlock: mu.Unlock}, nil
}

// Close lets go of the socket.
func (g *AFGraftSocket) Close() {
	g.unlock()
	unix.Close(g.s.file)
}

func (g *AFGraftSocket) bound() bool { return g.state.Name != "" }

// Bind answers bind(2) to an endpoint's name.
func (g *AFGraftSocket) Bind(name string) (Answer, error) {
	ep := g.e.Endpoint(name)
	if ep != nil && !ep.Nameable {
		g.e.Log.Info("endpoint may not be named by programs", "pid", g.p.Thread(), "endpoint", name)
		ep = nil
	}
	switch {
	case name == "" || ep == nil || g.e.Host[ep.Netns] == nil:
		return fail(unix.ENOENT), nil
	case g.bound() && g.e.Enforcer.BoundBy(g.s.file, g.p.Call()):
		return Answer{Action: Succeed}, nil
	case g.bound():
		return fail(unix.EINVAL), nil
	}
	g.e.Log.Info("decided", "pid", g.p.Thread(), "syscall", "bind", "fd", g.number, "endpoint", name)
	if err := g.moveTo(ep); err != nil {
		return answerFor(err)
	}
	return Answer{Action: Succeed}, nil
}

// leaveFrom answers connect(2) and sends of an AF_GRAFT socket, which the kernel
// then carries on with.
func (e *Engine) leaveFrom(p Program, number int, state policy.AFGraft) (Answer, error) {
	if state.Name != "" {
		return Answer{}, nil
	}
	g, err := e.AFGraft(p, number)
	if g == nil {
		return Answer{}, err
	}
	defer g.Close()
	if g.bound() {
		return Answer{}, nil // by another thread
	}
	if answer, err := g.Bind(DefaultSource); err != nil || answer.Action == Fail {
		return answer, err
	}
	return Answer{}, nil
}

// moveTo makes a socket at an endpoint, sets on it what the program has set, and
// puts it in the stand-in's place. An error leaves the stand-in as it was.
func (g *AFGraftSocket) moveTo(ep *endpoint.Endpoint) error {
	e := g.e
	file, err := g.socketFor(ep)
	if err != nil {
		return err
	}
	defer unix.Close(file)
	options, err := e.Enforcer.AFGraftOptions(g.s.file)
	if err != nil {
		return err
	}
	if err := setOptions(file, options); err != nil {
		return err
	}
	if ep.Type == endpoint.Unix {
		err = e.bindPath(g.p, file, g.s.typ, ep.Path)
	} else {
		err = e.bindNamed(file, ep, g.p.Call())
	}
	if err != nil {
		return err
	}
	state := g.state
	state.Name = ep.Name
	if err := e.Enforcer.SetAFGraft(file, state); err != nil {
		return err
	}
	if len(options) > 0 {
		if err := e.Enforcer.SetAFGraftOptions(file, options); err != nil {
			return err
		}
	}
	k, err := e.host.Maker()
	if err != nil {
		return err
	}
	if err := e.replaceAll(g.p, k, g.s, file); err != nil {
		return err
	}
	e.Log.Debug("swapped", "pid", g.p.Thread(), "fd", g.number, "endpoint", ep.Name)
	return nil
}

// socketFor makes the socket that is to take the stand-in's place.
func (g *AFGraftSocket) socketFor(ep *endpoint.Endpoint) (int, error) {
	if ep.Type == endpoint.Unix {
		file, err := g.e.unixSocket(g.s.typ)
		if err != nil {
			return -1, err
		}
		if err := copyFlags(g.s, file); err != nil {
			unix.Close(file)
			return -1, err
		}
		return file, nil
	}
	place := g.e.Host[ep.Netns]
	kind := g.s.kind()
	kind.Family = unix.AF_INET6
	if ep.Addr.Is4() {
		kind.Family = unix.AF_INET
	}
	k, err := place.Maker()
	if err != nil {
		return -1, err
	}
	file, err := k.Socket(kind)
	if err != nil {
		return -1, err
	}
	if err := g.e.prepare(g.s, file, place, rebind{}); err != nil {
		unix.Close(file)
		return -1, err
	}
	return file, nil
}

// bindNamed binds a socket to an endpoint's address and port, or to the first
// that is free of its ports.
func (e call) bindNamed(file int, ep *endpoint.Endpoint, by uint64) error {
	named, err := e.Enforcer.Name(ep)
	if err != nil {
		return err
	}
	if err := e.bindNamedPort(file, policy.Binding{Ingress: true, Named: named, Call: by}, ep); err != nil {
		return err
	}
	if e.Endpoint(ep.Name) != ep {
		// It was deleted meanwhile, perhaps before it had a number.
		return errors.Join(refusalError{unix.ENOENT}, e.Enforcer.Withdraw(ep))
	}
	return nil
}

func (e call) bindNamedPort(file int, b policy.Binding, ep *endpoint.Endpoint) error {
	place := e.Host[ep.Netns]
	b.Netns = place.Cookie()
	for port := int(ep.Port.First); ; port++ {
		b.Host = netip.AddrPortFrom(ep.Addr, uint16(port))
		b.View = b.Host
		err := e.bindHost(file, place, b)
		var r refusalError
		if port < int(ep.Port.Last) && errors.As(err, &r) && r.errno == unix.EADDRINUSE {
			continue
		}
		return err
	}
}

// SetDelayed answers GRAFT_SO_DELAYED.
func (g *AFGraftSocket) SetDelayed(on bool) error {
	g.state.Delayed = on
	return g.e.Enforcer.SetAFGraft(g.s.file, g.state)
}

// SetNameTransparent answers GRAFT_NAME_TRANSPARENT.
func (g *AFGraftSocket) SetNameTransparent(on bool) error {
	g.state.NameTransparent = on
	return g.e.Enforcer.SetAFGraft(g.s.file, g.state)
}

// Delay notes an option that is to be set once the socket is bound, or when the
// program says so.
func (g *AFGraftSocket) Delay(level, name int, value []byte) (Answer, error) {
	options, err := g.e.Enforcer.AFGraftOptions(g.s.file)
	if err != nil {
		return Answer{}, err
	}
	options = append(options, DelayedOption{Level: level, Name: name, Value: value})
	err = g.e.Enforcer.SetAFGraftOptions(g.s.file, options)
	if errors.Is(err, policy.ErrQueueFull) {
		return fail(unix.ENOBUFS), nil
	}
	if err != nil {
		return Answer{}, err
	}
	return Answer{Action: Succeed}, nil
}

// Execute answers GRAFT_SO_DELAYED_EXECUTE.
func (g *AFGraftSocket) Execute() (Answer, error) {
	if !g.bound() {
		return fail(unix.EADDRNOTAVAIL), nil
	}
	options, err := g.e.Enforcer.AFGraftOptions(g.s.file)
	if err == nil && len(options) > 0 {
		if err = setOptions(g.s.file, options); err == nil {
			err = g.e.Enforcer.SetAFGraftOptions(g.s.file, options)
		}
	}
	if err != nil {
		return Answer{}, err
	}
	return Answer{Action: Succeed}, nil
}

// SetTransparent answers GRAFT_SO_TRANSPARENT.
func (g *AFGraftSocket) SetTransparent(level, name int, value []byte) (Answer, error) {
	if g.state.Delayed {
		return g.Delay(level, name, value)
	}
	if !g.bound() {
		return fail(unix.EADDRNOTAVAIL), nil
	}
	options := []DelayedOption{{Level: level, Name: name, Value: value}}
	if err := setOptions(g.s.file, options); err != nil {
		return Answer{}, err
	}
	if errno := unix.Errno(-options[0].Result); errno != 0 {
		return fail(errno), nil
	}
	return Answer{Action: Succeed}, nil
}

// Results are the options that have been set, in the order in which they came.
func (g *AFGraftSocket) Results() ([]DelayedOption, error) {
	options, err := g.e.Enforcer.AFGraftOptions(g.s.file)
	return slices.DeleteFunc(options, func(o DelayedOption) bool { return !o.Done }), err
}

// Forget drops results that the program has taken, unless another call has.
func (g *AFGraftSocket) Forget(taken []DelayedOption) error {
	options, err := g.e.Enforcer.AFGraftOptions(g.s.file)
	if err != nil || len(taken) == 0 {
		return err
	}
	options = slices.DeleteFunc(options, func(o DelayedOption) bool {
		same := len(taken) > 0 && reflect.DeepEqual(o, taken[0])
		if same {
			taken = taken[1:]
		}
		return same
	})
	return g.e.Enforcer.SetAFGraftOptions(g.s.file, options)
}

// setOptions sets those of the options that are not done, in their order, and
// notes the results. The program could make us set what it could not set itself:
// we are root, and what an option holds may be a pointer or a descriptor, ours
// then. So only such are set as hold their value and nothing else, and that
// without any capability.
func setOptions(file int, options []DelayedOption) error {
	return withoutCapabilities(func() {
		for i := range options {
			o := &options[i]
			if o.Done {
				continue
			}
			o.Done, o.Result = true, -int(unix.EPERM)
			if !settableByProgram(o.Level, o.Name) {
				continue
			}
			o.Result = 0
			var errno unix.Errno
			if errors.As(setsockopt(file, o.Level, o.Name, o.Value), &errno) {
				o.Result = -int(errno)
			}
		}
	})
}

// settableByProgram tells whether an option holds nothing but its value, and does
// not lead a socket around its endpoint (bpf/options.h).
func settableByProgram(level, name int) bool {
	if level == unix.SOL_SOCKET && name == unix.SO_PASSCRED {
		return true
	}
	for _, o := range options {
		if o.level == level && o.name == name {
			return true
		}
	}
	return false
}

// withoutCapabilities runs fn on a thread of its own that has none.
func withoutCapabilities(fn func()) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread dies with the goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&header, &none[0]); err != nil {
			done <- fmt.Errorf("drop our capabilities: %w", err)
			return
		}
		fn()
		done <- nil
	}()
	return <-done
}
