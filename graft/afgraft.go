package graft

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/afgraft"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/sys/thread"
	"github.com/tsugiki/tsugiki/keeper"
	"github.com/tsugiki/tsugiki/policy"
)

// Programs that are written for AF_GRAFT name their endpoints themselves
// (Nakamura et al., ANCS 2018; include/tsugiki/graft.h).
//
// # Theory of operation
//
// socket(AF_GRAFT) is answered with a stand-in: an IP socket of the container's own namespace, so
// that poll, dup, fork, exec and options work on it. It is marked in the kernel (afgraft.State).
// bind(2) names the endpoint, which has to be a nameable one, and so tells family and place. A
// socket made there replaces the stand-in, as in a swap. A stand-in that connects or sends is bound
// to the endpoint default-source first. From then on the program has a host socket, and the kernel
// carries on with its calls: the kernel programs let it connect through its endpoint to all that is
// not special.

// namedLocks is how many AF_GRAFT sockets can be changed at the same time.
const namedLocks = 64

// Socket answers socket(AF_GRAFT), as a rule with Give.
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
	if err := e.Enforcer.SetAFGraft(file, afgraft.State{}); err != nil {
		unix.Close(file)
		return Answer{}, err
	}
	e.Know(OwnSockets)
	e.Know(AFGraftSockets)
	e.Log.Debug("stands in", "pid", p.Thread())
	return Answer{Action: Give, File: file}, nil
}

// AFGraftState returns the state of an AF_GRAFT socket of the program, or false if the descriptor
// is none.
func (e *Engine) AFGraftState(p Program, number int) (afgraft.State, bool, error) {
	file, err := p.File(number)
	if err != nil {
		return afgraft.State{}, false, ignoreBadFile(err)
	}
	defer unix.Close(file)
	return e.Enforcer.AFGraft(file)
}

// AFGraftSocket returns an AF_GRAFT socket of the program, which the caller has to Close, or nil if
// the descriptor is none.
func (e *Engine) AFGraftSocket(p Program, number int) (*afgraft.Socket, error) {
	n, err := e.takeNamed(p, number)
	if n == nil {
		return nil, err
	}
	return &n.Socket, nil
}

// named is an AF_GRAFT socket of the program during one call.
type named struct {
	afgraft.Socket
	call
	p      Program
	number int
	s      *socket
}

// takeNamed returns an AF_GRAFT socket of the program, or nil if the descriptor is none.
func (e *Engine) takeNamed(p Program, number int) (*named, error) {
	file, err := p.File(number)
	if err != nil {
		return nil, ignoreBadFile(err)
	}
	n, err := e.lockNamed(p, number, file)
	if n == nil {
		unix.Close(file)
	}
	return n, err
}

func (e *Engine) lockNamed(p Program, number, file int) (*named, error) {
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
	e.makeNamedMu.Do(func() { e.namedMu = new([namedLocks]sync.Mutex) })
	mu := &e.namedMu[s.cookie%namedLocks]
	mu.Lock()
	state, _, err := e.Enforcer.AFGraft(file)
	if err != nil {
		mu.Unlock()
		return nil, err
	}
	n := &named{call: e.begin(), p: p, number: number, s: s}
	n.Socket = afgraft.Socket{File: file, State: state, Store: e.Enforcer, Set: setOptions, Close: func() {
		mu.Unlock()
		unix.Close(file)
	}}
	return n, nil
}

// BindNamed answers bind(2) of an AF_GRAFT socket to an endpoint's name.
func (e *Engine) BindNamed(p Program, number int, name string) (Answer, error) {
	n, err := e.takeNamed(p, number)
	if n == nil {
		return Answer{}, err
	}
	defer n.Close()
	return n.bindTo(name)
}

// bindTo replaces the stand-in by a socket at the endpoint of a name.
func (n *named) bindTo(name string) (Answer, error) {
	ep := n.Endpoint(name)
	if ep != nil && !ep.Nameable {
		n.Log.Info("endpoint may not be named by programs", "pid", n.p.Thread(), "endpoint", name)
		ep = nil
	}
	switch {
	case name == "" || ep == nil || n.Host[ep.Netns] == nil:
		return fail(unix.ENOENT), nil
	case n.Bound() && n.Enforcer.BoundBy(n.File, n.p.Call()):
		return Answer{Action: Succeed}, nil
	case n.Bound():
		return fail(unix.EINVAL), nil
	}
	n.Log.Info("decided", "pid", n.p.Thread(), "syscall", "bind", "fd", n.number, "endpoint", name)
	if err := n.moveTo(ep); err != nil {
		return answerFor(err)
	}
	return Answer{Action: Succeed}, nil
}

// leaveFrom answers connect(2) and sends of an AF_GRAFT socket. The kernel then carries on with the
// call.
func (e *Engine) leaveFrom(p Program, number int, state afgraft.State) (Answer, error) {
	if state.Name != "" {
		return Answer{}, nil
	}
	n, err := e.takeNamed(p, number)
	if n == nil {
		return Answer{}, err
	}
	defer n.Close()
	if n.Bound() {
		return Answer{}, nil // another thread has bound it
	}
	if answer, err := n.bindTo(afgraft.DefaultSource); err != nil || answer.Action == Fail {
		return answer, err
	}
	return Answer{}, nil
}

// moveTo makes a socket at an endpoint, sets the program's options on it, and replaces the stand-in
// by it. An error leaves the stand-in unchanged.
func (n *named) moveTo(ep *endpoint.Endpoint) error {
	file, err := n.socketFor(ep)
	if err != nil {
		return err
	}
	defer unix.Close(file)
	options, err := n.Enforcer.AFGraftOptions(n.s.file)
	if err != nil {
		return err
	}
	if err := setOptions(file, options); err != nil {
		return err
	}
	if ep.Type == endpoint.Unix {
		err = n.bindPath(n.p, file, n.s.typ, ep.Path)
	} else {
		err = n.bindNamed(file, ep, n.p.Call())
	}
	if err != nil {
		return err
	}
	state := n.State
	state.Name = ep.Name
	if err := n.Enforcer.SetAFGraft(file, state); err != nil {
		return err
	}
	if len(options) > 0 {
		if err := n.Enforcer.SetAFGraftOptions(file, options); err != nil {
			return err
		}
	}
	k, err := n.host.Maker()
	if err != nil {
		return err
	}
	if err := n.replaceAll(n.p, k, n.number, n.s, file); err != nil {
		return err
	}
	n.Log.Debug("swapped", "pid", n.p.Thread(), "fd", n.number, "endpoint", ep.Name)
	return nil
}

// socketFor makes the socket that replaces the stand-in.
func (n *named) socketFor(ep *endpoint.Endpoint) (int, error) {
	if ep.Type == endpoint.Unix {
		file, err := n.unixSocket(n.s.typ)
		if err != nil {
			return -1, err
		}
		if err := copyFlags(n.s, file); err != nil {
			unix.Close(file)
			return -1, err
		}
		return file, nil
	}
	place := n.Host[ep.Netns]
	kind := n.s.kind()
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
	if err := n.prepare(n.s, file, place, rebind{}); err != nil {
		unix.Close(file)
		return -1, err
	}
	return file, nil
}

// bindNamed binds a socket to an endpoint's address and port, or to the first free one of its
// ports.
func (e call) bindNamed(file int, ep *endpoint.Endpoint, by uint64) error {
	is := func() bool { return e.Endpoint(ep.Name) == ep }
	named, err := e.Enforcer.Name(ep, is)
	if err != nil {
		return err
	}
	if named == 0 {
		return refusalError{unix.ENOENT}
	}
	if err := e.bindNamedPort(file, policy.Binding{Ingress: true, Named: named, Call: by}, ep); err != nil {
		return err
	}
	if !is() { // it was deleted meanwhile
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

// setOptions sets those options that have no result yet, in their order, and notes the results. A
// program must not make us set an option that it could not set itself: we are root, and a pointer
// or a descriptor in an option would be one of ours. So setOptions sets only options that hold
// nothing but a value, and has no capability while it does.
func setOptions(file int, options []afgraft.Option) error {
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

// settableByProgram tells whether an option holds nothing but a value, and does not let a socket
// bypass its endpoint (bpf/options.h).
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

// withoutCapabilities runs fn on a thread of its own without capabilities.
func withoutCapabilities(fn func()) error {
	return thread.Do(func() error {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&header, &none[0]); err != nil {
			return fmt.Errorf("drop our capabilities: %w", err)
		}
		fn()
		return nil
	})
}
