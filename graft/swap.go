package graft

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/policy"
)

// rebind says how a socket is bound in its new place.
type rebind struct {
	wanted  bool
	exact   bool // if false, another port will do if this one is taken
	ingress bool
	to      netip.AddrPort
	second  netip.AddrPort // see policy.Binding
	view    netip.AddrPort // name that the program sees, on the host's side
	call    uint64         // the bind(2) that the swap answers, or 0
	// Numbers of ingress rules, see policy.Binding.
	rule, secondRule int
}

// swap makes a socket in another place, copies the old socket's state to it, and installs it under
// every number that the program's process has for the old socket. The caller closes the returned
// file.
//
// swap changes nothing in the program before the new socket is complete, so that a failure leaves
// the program unchanged. Replacing one number is atomic. A thread of the program that uses the
// socket during the move may use either socket. Other processes that share the old socket keep it.
func (e call) swap(p Program, number int, s *socket, to Place, name rebind) (int, error) {
	k, err := to.Maker()
	if err != nil {
		return -1, err
	}
	file, err := k.Socket(s.kind())
	if err != nil {
		return -1, err
	}
	if err := e.prepare(s, file, to, name); err != nil {
		unix.Close(file)
		return -1, err
	}
	if e.places[to.Cookie()] == nil {
		e.Know(OwnSockets)
	}
	if err := e.replaceAll(p, k, number, s, file); err != nil {
		unix.Close(file)
		return -1, err
	}
	e.Log.Debug("swapped", "pid", p.Thread(), "fd", number, "netns", to.Cookie())
	return file, nil
}

// ErrClosed says that the program has closed the descriptor of a call during the call, by another thread. The kernel
// says what the call then meets.
var ErrClosed = errors.New("it was closed during the call")

// replaceAll installs the new socket under every number that the program's process has for the old
// one. If number, that of the call, is not among them, replaceAll replaces none and returns ErrClosed.
func (e *Engine) replaceAll(p Program, k SocketMaker, number int, s *socket, file int) error {
	descriptors, err := p.Descriptors(s.file)
	if err != nil {
		return err
	}
	defer CloseWatches(descriptors)
	if !slices.ContainsFunc(descriptors, func(d Descriptor) bool { return d.Number == number }) {
		return fmt.Errorf("descriptor %d: %w", number, ErrClosed)
	}
	for _, d := range descriptors {
		if err := e.replace(p, k, s, file, d); err != nil {
			return err
		}
	}
	return nil
}

func (e call) prepare(s *socket, file int, to Place, name rebind) error {
	if e.places[to.Cookie()] != nil {
		if err := e.Enforcer.Prove(file); err != nil {
			return err
		}
	}
	if err := e.copyAllOptions(s, file); err != nil {
		return err
	}
	if err := copyFlags(s, file); err != nil {
		return err
	}
	if !name.wanted {
		return nil
	}
	if s.netns == to.Cookie() {
		restore, err := letTogether(s.file, file)
		if err != nil {
			return err
		}
		defer restore()
	}
	err := e.bindIn(file, to, name)
	if err != nil && !name.exact {
		// The program knows the socket's port and still sees it.
		name.to = netip.AddrPortFrom(name.to.Addr(), 0)
		err = e.bindIn(file, to, name)
	}
	return err
}

func copyFlags(s *socket, file int) error {
	flags, err := unix.FcntlInt(uintptr(s.file), unix.F_GETFL, 0)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(file), unix.F_SETFL, flags&settable)
	}
	if err != nil {
		return fmt.Errorf("copy file flags: %w", err)
	}
	return nil
}

// letTogether lets two sockets of one namespace have the same port, until restore is called.
func letTogether(files ...int) (restore func(), err error) {
	var changed []int
	restore = func() {
		for _, file := range changed {
			_ = unix.SetsockoptInt(file, unix.SOL_SOCKET, unix.SO_REUSEADDR, 0)
		}
	}
	for _, file := range files {
		reuses, err := unix.GetsockoptInt(file, unix.SOL_SOCKET, unix.SO_REUSEADDR)
		if err == nil && reuses == 0 {
			changed = append(changed, file)
			err = unix.SetsockoptInt(file, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		}
		if err != nil {
			restore()
			return nil, fmt.Errorf("let sockets share a port: %w", err)
		}
	}
	return restore, nil
}

// settable are the flags that fcntl(F_SETFL) can set on a socket.
const settable = unix.O_NONBLOCK | unix.O_ASYNC

func (e call) bindIn(file int, to Place, name rebind) error {
	if e.places[to.Cookie()] == nil {
		return refusal(unix.Bind(file, sockaddr.Of(name.to)))
	}
	return e.bindHost(file, to, policy.Binding{
		Host: name.to, Second: name.second, View: name.view, Ingress: name.ingress, Rule: name.rule, SecondRule: name.secondRule, Call: name.call,
	})
}

// replace installs the new socket under one number. An epoll identifies a registration by file and
// number. So replace first registers the new file, under the number by which the program will refer
// to it: if we die in between, there is one registration too many and not one too few. It deletes
// the old registration at the end, because the old file may live on under numbers of other
// processes.
func (e *Engine) replace(p Program, k SocketMaker, s *socket, file int, d Descriptor) error {
	for _, w := range d.Watches {
		// Two of the program's descriptors may refer to one epoll, which then has the registration
		// already.
		if err := k.EpollAdd(w.Epoll, file, d.Number, w.Events, w.Data); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("put descriptor %d into its epoll: %w", d.Number, err)
		}
	}
	if err := p.Install(d.Number, file, d.CloseOnExec); err != nil {
		return err
	}
	for _, w := range d.Watches {
		if err := k.EpollDel(w.Epoll, s.file, d.Number); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("take descriptor %d out of its epoll: %w", d.Number, err)
		}
	}
	return nil
}

// CloseWatches closes the epolls of descriptors.
func CloseWatches(descriptors []Descriptor) {
	for _, d := range descriptors {
		for _, w := range d.Watches {
			unix.Close(w.Epoll)
		}
	}
}
