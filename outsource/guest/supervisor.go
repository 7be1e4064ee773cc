package guest

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/seccomp"
	"github.com/tsugiki/tsugiki/outsource/wire"
)

// supervisor answers the calls of programs under a filter.
type supervisor struct {
	control  *control
	listener seccomp.Listener
	log      *slog.Logger
	queues   *queues
	unheard  unheard
	// binding is held during a bind: if a signal interrupts the call, it is made again, and must find the port
	// free.
	binding sync.Mutex
	// flags is held while O_NONBLOCK of a program's file is another than the program's.
	flags sync.Mutex
}

// proceed says that the kernel carries on with the call.
const proceed = 1 // SECCOMP_USER_NOTIF_FLAG_CONTINUE

// answer is how a call goes on: with an errno, with 0, or as the kernel does it.
type answer struct {
	proceed bool
	given   bool // the answer was given already
	errno   unix.Errno
	change  change // that the call has made
}

var carryOn = answer{proceed: true}

// serve answers calls until the last program under the filter has ended.
func (s *supervisor) serve() error {
	for {
		n, err := s.listener.Receive()
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return err
		}
		go s.reply(n)
	}
}

// reply answers one call. A fault of ours lets the kernel carry on: on a socket of the guest's, the
// program gets what it gets without the host.
func (s *supervisor) reply(n *seccomp.Notification) {
	r := seccomp.Response{ID: n.ID, Flags: proceed}
	a, err := s.handle(n)
	var errno unix.Errno
	switch {
	case errors.Is(err, seccomp.ErrStale), a.given:
		return
	case errors.As(err, &errno):
		r = seccomp.Response{ID: n.ID, Errno: -int32(errno)}
	case err != nil:
		s.log.Error("call is not outsourced", "pid", n.Thread, "syscall", n.Number, "err", err)
	case a.errno != 0:
		r = seccomp.Response{ID: n.ID, Errno: -int32(a.errno)}
	case !a.proceed:
		r = seccomp.Response{ID: n.ID}
	}
	switch err = s.listener.Answer(&r); {
	case err == nil:
		s.unheard.take(a.change)
	case !errors.Is(err, seccomp.ErrStale):
		s.log.Error("answer a call", "pid", n.Thread, "syscall", n.Number, "err", err)
	}
}

func (s *supervisor) handle(n *seccomp.Notification) (answer, error) {
	c, err := openCaller(s.listener, n)
	if err != nil {
		return carryOn, faultOf(err)
	}
	defer c.close()
	file, err := c.file()
	if err != nil {
		if errors.Is(err, unix.EBADF) {
			return carryOn, nil // the kernel says so too
		}
		return carryOn, faultOf(err)
	}
	defer unix.Close(file)
	k, err := inspect(file)
	if err == nil {
		k.handle, err = s.which(k.handle, k.port)
	}
	if err != nil || !k.ours() {
		return carryOn, faultOf(err)
	}
	if k.datagrams {
		return s.handleDatagrams(c, k)
	}
	switch n.Number {
	case unix.SYS_CONNECT:
		return s.connect(c, k)
	case unix.SYS_BIND:
		return s.bind(c, k)
	}
	if k.handle == 0 {
		return carryOn, nil // a socket of the guest's
	}
	switch n.Number {
	case unix.SYS_LISTEN:
		return s.listen(c, k)
	case unix.SYS_ACCEPT:
		return s.accept(c, k, 0)
	case unix.SYS_ACCEPT4:
		return s.accept(c, k, c.number(3))
	case unix.SYS_GETSOCKNAME:
		return s.name(c, k, false)
	case unix.SYS_GETPEERNAME:
		return s.name(c, k, true)
	case unix.SYS_GETSOCKOPT:
		return s.getOption(c, k)
	case unix.SYS_SETSOCKOPT:
		return s.setOption(c, k)
	}
	return carryOn, nil
}

// handleDatagrams answers a call on a UDP socket.
func (s *supervisor) handleDatagrams(c *caller, k *kind) (answer, error) {
	switch c.Number {
	case unix.SYS_CONNECT:
		return s.connectDatagrams(c, k)
	case unix.SYS_BIND:
		return s.bindDatagrams(c, k)
	case unix.SYS_GETSOCKNAME:
		return s.nameDatagrams(c, k)
	}
	return carryOn, nil
}

// faultOf makes an errno of a call of ours an error without one: it is not the program's.
func faultOf(err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errors.New(err.Error())
	}
	return err
}

// kind is what the supervisor knows of a socket. The kernel says all of it.
type kind struct {
	file      int
	family    int
	handle    uint32 // of an outsourced socket; else 0
	port      uint32 // if it is not 0, handle is that of the listener which has accepted it: see which
	connected bool   // an outsourced socket is
	fresh     bool   // a TCP socket of the guest's is neither connected nor listening
	datagrams bool   // a UDP socket
}

// ours tells whether the socket is outsourced, or may be.
func (k *kind) ours() bool { return k.handle != 0 || k.fresh || k.datagrams }

// inspect asks the kernel about a file.
func inspect(file int) (*kind, error) {
	k := &kind{file: file}
	var err error
	if k.family, err = unix.GetsockoptInt(file, unix.SOL_SOCKET, unix.SO_DOMAIN); err != nil {
		if errors.Is(err, unix.ENOTSOCK) || errors.Is(err, unix.EBADF) {
			return k, nil
		}
		return k, fmt.Errorf("inspect socket: %w", err)
	}
	switch k.family {
	case unix.AF_INET, unix.AF_INET6:
		var protocol int
		if protocol, err = unix.GetsockoptInt(file, unix.SOL_SOCKET, unix.SO_PROTOCOL); err != nil {
			return k, fmt.Errorf("inspect socket: %w", err)
		}
		k.datagrams = protocol == unix.IPPROTO_UDP
		if protocol == unix.IPPROTO_TCP {
			k.fresh, err = isFreshTCP(file)
		}
	case unix.AF_VSOCK:
		k.handle, k.port, k.connected = handleOf(file)
	}
	return k, err
}

// isFreshTCP tells whether a TCP socket has no peer and does not listen.
func isFreshTCP(file int) (bool, error) {
	const closed = 7 // TCP_CLOSE of linux/tcp_states.h
	info, err := unix.GetsockoptTCPInfo(file, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return false, fmt.Errorf("inspect socket: %w", err)
	}
	return info.State == closed, nil
}

// handleOf returns the handle of a vsock socket, which its names say: see package wire. A listener and a
// socket that connects have it in their own port, a connection in its peer's. If the peer's port does not
// say it, port is the peer's, and handle the listener's.
func handleOf(file int) (handle, port uint32, connected bool) {
	if sa, err := unix.Getsockname(file); err == nil {
		if vm, is := sa.(*unix.SockaddrVM); is {
			handle, _ = wire.HandleOf(vm.Port)
		}
	}
	sa, err := unix.Getpeername(file)
	if err != nil {
		return handle, 0, false
	}
	vm, is := sa.(*unix.SockaddrVM)
	if !is || vm.CID != hostCID {
		return 0, 0, false
	}
	if of, is := wire.HandleOf(vm.Port); is {
		return of, 0, true
	}
	if vm.Port != wire.DataPort(0) && handle != 0 {
		return handle, vm.Port, true
	}
	return handle, 0, handle != 0
}

// staysInGuest tells whether a destination is the guest itself. The kernel takes the wildcard for the
// loopback.
func staysInGuest(to netip.AddrPort) bool {
	addr := to.Addr().Unmap()
	return addr.IsLoopback() || addr.IsUnspecified()
}

// await waits until a file is ready, as long as the call waits. The error is EAGAIN when the time is over that
// the program has set for such calls of a socket, by an option of SOL_SOCKET. enough, which may be nil, ends the
// wait, too.
func (c *caller) await(file int, events int16, option, of int, enough func() bool) error {
	// Nobody says when a signal has interrupted a call.
	const look = 250 * time.Millisecond
	var limit time.Time
	if t, err := unix.GetsockoptTimeval(of, unix.SOL_SOCKET, option); err == nil && *t != (unix.Timeval{}) {
		limit = time.Now().Add(time.Duration(t.Nano()))
	}
	for {
		pause := look
		if !limit.IsZero() {
			if pause = min(look, time.Until(limit)); pause <= 0 {
				return unix.EAGAIN
			}
		}
		list := []unix.PollFd{{Fd: int32(file), Events: events}}
		n, err := unix.Poll(list, int((pause + time.Millisecond - 1).Milliseconds()))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for a socket: %w", err)
		}
		if err := c.valid(); err != nil {
			return err
		}
		if n > 0 || enough != nil && enough() {
			return nil
		}
	}
}

// blocks tells whether a program's calls on a file wait. Another call may be in withoutWaiting with the same file,
// as those of prefork servers are.
func (s *supervisor) blocks(file int) (bool, error) {
	s.flags.Lock()
	defer s.flags.Unlock()
	return blocks(file)
}

// blocks tells whether calls on a file wait. The caller holds flags.
func blocks(file int) (bool, error) {
	flags, err := unix.FcntlInt(uintptr(file), unix.F_GETFL, 0)
	return flags&unix.O_NONBLOCK == 0, err
}

// withoutWaiting makes a call on a program's file that does not wait. The program could see the flag
// meanwhile.
func (s *supervisor) withoutWaiting(file int, call func() error) error {
	s.flags.Lock()
	defer s.flags.Unlock()
	wait, err := blocks(file)
	if err != nil {
		return err
	}
	if wait {
		if err := unix.SetNonblock(file, true); err != nil {
			return err
		}
		defer unix.SetNonblock(file, false) //nolint:errcheck // it did just now
	}
	return call()
}
