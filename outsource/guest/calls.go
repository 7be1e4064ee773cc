package guest

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/seccomp"
	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/outsource/wire"
)

// connectPatience is longer than the host's kernel tries to connect (tcp_syn_retries).
const connectPatience = time.Hour

// connect answers connect(2). The host begins to connect, and the guest's vsock socket connects until
// the host's has. A call that waits is answered here, because vsock has no errno of TCP.
func (s *supervisor) connect(c *caller, k *kind) (answer, error) {
	to, is, err := c.name(c.Args[1], c.number(2))
	if err != nil || !is {
		return carryOn, err
	}
	repeated := s.unheard.take(change{k.handle, to})
	if k.connected {
		if repeated {
			return answer{}, nil
		}
		return answer{errno: unix.EISCONN}, nil
	}
	if staysInGuest(to) {
		if k.handle != 0 { // a rule has given it to the host
			return answer{errno: unix.ENETUNREACH}, nil
		}
		return carryOn, nil
	}
	if k.family == unix.AF_INET && !to.Addr().Is4() || k.family == unix.AF_INET6 && to.Addr().Is4() {
		return carryOn, nil // the kernel refuses it
	}
	if own, err := ownName(k.file); err == nil && k.handle == 0 && own.Addr().Unmap().IsLoopback() {
		return answer{errno: unix.EINVAL}, nil // as of a socket that is bound to the loopback
	}
	waits, err := s.blocks(k.file)
	if err != nil {
		return carryOn, faultOf(err)
	}
	m := &wire.Message{Op: wire.Connect, Handle: k.handle, Type: unix.SOCK_STREAM, Name: to, Flags: flagsOf(to), Options: optionsOf(k)}
	reply, err := s.control.call(m)
	if err != nil {
		return carryOn, faultOf(err)
	}
	errno := unix.Errno(reply.Errno)
	if errno == unix.EBADF && k.handle != 0 { // of a connect that has failed long ago
		m.Handle, k.handle = 0, 0
		if reply, err = s.control.call(m); err != nil {
			return carryOn, faultOf(err)
		}
		errno = unix.Errno(reply.Errno)
	}
	if errno == unix.EALREADY && k.handle != 0 && waits {
		a, err := s.finish(c, k.file, k.handle)
		if a.errno == unix.EINPROGRESS { // the time is over again
			a.errno = unix.EALREADY
		}
		return a, err
	}
	if repeated && !waits && (errno == unix.EALREADY || errno == unix.EISCONN) {
		return answer{errno: unix.EINPROGRESS, change: s.unheard.add(change{k.handle, to})}, nil
	}
	if errno != 0 && errno != unix.EINPROGRESS {
		return answer{errno: errno}, nil
	}
	made := s.unheard.add(change{reply.Handle, to}) // before the program's socket shows it
	var a answer
	if k.handle != 0 {
		a, err = s.connectBound(c, k, waits)
	} else {
		a, err = s.connectNew(c, k, reply.Handle, waits)
	}
	a.change = made
	return a, err
}

// connectBound connects a socket that was bound to its data port.
func (s *supervisor) connectBound(c *caller, k *kind, waits bool) (answer, error) {
	err := s.withoutWaiting(k.file, func() error { return s.connectData(k.file, k.handle) })
	if err != nil {
		return carryOn, faultOf(err)
	}
	if !waits && !s.control.isShared() {
		return answer{errno: unix.EINPROGRESS}, nil
	}
	return s.finish(c, k.file, k.handle)
}

// connectNew connects a new socket to the data port of a handle, and puts it in the place of the
// program's.
func (s *supervisor) connectNew(c *caller, k *kind, handle uint32, waits bool) (answer, error) {
	file, err := s.standIn(k, handle)
	if err == nil {
		defer unix.Close(file)
		err = s.connectData(file, handle)
	}
	if err != nil {
		s.letGo(handle)
		return carryOn, faultOf(err)
	}
	if !waits && !s.control.isShared() {
		if err := c.replace(k.file, file); err != nil {
			s.letGo(handle)
			return carryOn, faultOf(err)
		}
		return answer{errno: unix.EINPROGRESS}, nil
	}
	a, err := s.finish(c, file, handle)
	goesOn := err == nil && a.errno == unix.EINPROGRESS
	if err == nil && (a.errno == 0 || goesOn) {
		if err = unix.SetNonblock(file, !waits); err == nil {
			err = c.replace(k.file, file)
		}
	}
	if err != nil || a.errno != 0 && !goesOn {
		s.letGo(handle)
	}
	if errors.Is(err, seccomp.ErrStale) {
		return a, err
	}
	return a, faultOf(err)
}

// finish waits for a vsock socket that connects, and returns the errno of the host's.
func (s *supervisor) finish(c *caller, file int, handle uint32) (answer, error) {
	err := c.await(file, unix.POLLOUT, unix.SO_SNDTIMEO, file, nil)
	if errors.Is(err, unix.EAGAIN) {
		return s.late(), nil
	}
	if err != nil {
		return answer{}, err
	}
	value, err := unix.GetsockoptInt(file, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && value == 0 && s.control.isShared() {
		return s.introduce(c, file, handle)
	}
	if err != nil || value == 0 {
		return answer{}, faultOf(err)
	}
	errno, err := s.errnoOf(handle, unix.Errno(value))
	return answer{errno: errno}, err
}

// late answers a connect whose time is over. It goes on, unless the supervisor has to read the host's answer.
func (s *supervisor) late() answer {
	if s.control.isShared() {
		return answer{errno: unix.ETIMEDOUT}
	}
	return answer{errno: unix.EINPROGRESS}
}

// introduce says on a data connection which handle it is for, and waits until the host's socket is
// connected. The connection itself is there before that, so a program that does not want to wait does so too.
func (s *supervisor) introduce(c *caller, file int, handle uint32) (answer, error) {
	preamble := wire.Preamble(handle)
	if _, err := unix.Write(file, preamble[:]); err != nil {
		return answer{}, faultOf(fmt.Errorf("name a data connection: %w", err))
	}
	var got []byte
	for len(got) < len(preamble) {
		err := c.await(file, unix.POLLIN, unix.SO_SNDTIMEO, file, nil)
		if errors.Is(err, unix.EAGAIN) {
			return s.late(), nil
		}
		if err != nil {
			return answer{}, err
		}
		b := make([]byte, len(preamble)-len(got))
		n, _, err := unix.Recvfrom(file, b, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		case err != nil, n == 0:
			errno, err := s.errnoOf(handle, unix.ECONNRESET)
			return answer{errno: errno}, err
		default:
			got = append(got, b[:n]...)
		}
	}
	if [8]byte(got) != preamble {
		return answer{}, fmt.Errorf("the host answers a data connection by % x", got)
	}
	return answer{}, nil
}

// errnoOf returns the errno of the host's socket in place of that of vsock, which has one for all.
func (s *supervisor) errnoOf(handle uint32, own unix.Errno) (unix.Errno, error) {
	reply, err := s.control.call(&wire.Message{Op: wire.Names, Handle: handle})
	if err != nil {
		return own, faultOf(err)
	}
	switch errno := unix.Errno(reply.Errno); errno {
	case 0, unix.EBADF: // the connection has ended since
		return own, nil
	default:
		return errno, nil
	}
}

// letGo has the host forget a handle.
func (s *supervisor) letGo(handle uint32) {
	if _, err := s.control.call(&wire.Message{Op: wire.Close, Handle: handle}); err != nil {
		s.log.Debug("handle is not closed", "handle", handle, "err", err)
	}
}

func flagsOf(name netip.AddrPort) uint8 {
	if name.Addr().Is6() {
		return wire.Flag6
	}
	return 0
}

// standIn makes the vsock socket that takes the place of a program's, with the flags and those
// options that are its own business. It does not block.
func (s *supervisor) standIn(k *kind, handle uint32) (int, error) {
	file, err := bound(handle)
	if err != nil {
		return -1, err
	}
	for _, name := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if t, err := unix.GetsockoptTimeval(k.file, unix.SOL_SOCKET, name); err == nil && *t != (unix.Timeval{}) {
			_ = unix.SetsockoptTimeval(file, unix.SOL_SOCKET, name, t)
		}
	}
	return file, nil
}

func (s *supervisor) connectData(file int, handle uint32) error {
	port := wire.DataPort(handle)
	if s.control.isShared() {
		port = wire.DataPort(0)
	}
	if err := setConnectTimeout(file, connectPatience); err != nil {
		return err
	}
	err := unix.Connect(file, &unix.SockaddrVM{CID: hostCID, Port: port})
	if errors.Is(err, unix.EINPROGRESS) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("connect to the host: %w", err)
	}
	return nil
}

// bind answers bind(2). What no rule covers is the guest's own.
func (s *supervisor) bind(c *caller, k *kind) (answer, error) {
	at, is, err := c.name(c.Args[1], c.number(2))
	if k.handle != 0 && err == nil {
		if is && s.unheard.take(change{k.handle, at}) {
			return answer{}, nil
		}
		return answer{errno: unix.EINVAL}, nil
	}
	if err != nil || !is || at.Addr().Unmap().IsLoopback() {
		return carryOn, err
	}
	if own, err := ownName(k.file); err != nil || own.Port() != 0 {
		return carryOn, faultOf(err) // it is bound
	}
	s.binding.Lock()
	defer s.binding.Unlock()
	if err := c.valid(); err != nil {
		return answer{}, err
	}
	reply, err := s.control.call(&wire.Message{Op: wire.Bind, Type: unix.SOCK_STREAM, Name: at, Flags: flagsOf(at), Options: optionsOf(k)})
	if err != nil {
		return carryOn, faultOf(err)
	}
	if reply.Errno != 0 || reply.Flags&wire.FlagLocal != 0 {
		return answer{errno: unix.Errno(reply.Errno), proceed: reply.Errno == 0}, nil
	}
	defer s.control.got(reply.Handle)
	file, err := s.standIn(k, reply.Handle)
	if err == nil {
		defer unix.Close(file)
		var waits bool
		if waits, err = s.blocks(k.file); err == nil && waits {
			err = unix.SetNonblock(file, false)
		}
	}
	made := s.unheard.add(change{reply.Handle, at}) // before the program's socket shows it
	if err == nil {
		err = c.replace(k.file, file)
	}
	if err != nil {
		s.letGo(reply.Handle)
		s.unheard.take(made)
		return carryOn, faultOf(err)
	}
	return answer{change: made}, nil
}

// listen answers listen(2): the guest's queue first, because the host dials at once.
func (s *supervisor) listen(c *caller, k *kind) (answer, error) {
	if k.connected {
		return answer{errno: unix.EINVAL}, nil
	}
	if err := unix.Listen(k.file, c.number(1)); err != nil {
		return carryOn, faultOf(err)
	}
	reply, err := s.control.call(&wire.Message{Op: wire.Listen, Handle: k.handle, Number: uint32(c.Args[1])})
	if err != nil {
		return carryOn, faultOf(err)
	}
	return answer{errno: unix.Errno(reply.Errno)}, nil
}

// accept answers accept(2), because the kernel would name the host's vsock port.
func (s *supervisor) accept(c *caller, k *kind, flags int) (answer, error) {
	if flags&^(unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC) != 0 {
		return answer{errno: unix.EINVAL}, nil
	}
	waits, err := s.blocks(k.file)
	if err != nil {
		return answer{}, faultOf(err)
	}
	for {
		err := s.acceptOnce(c, k, flags)
		if !errors.Is(err, unix.EAGAIN) || !waits {
			return answer{given: err == nil}, err
		}
		err = c.await(k.file, unix.POLLIN, unix.SO_RCVTIMEO, k.file, func() bool { return s.queues.has(k.handle) })
		if err != nil {
			return answer{}, err
		}
	}
}

// acceptOnce gives a call the next connection; the error is EAGAIN if there is none. A connection that the
// program does not get, because a signal has interrupted its call or it has no number left, is that of the next
// accept(2).
func (s *supervisor) acceptOnce(c *caller, k *kind, flags int) error {
	q := s.queues.hold(k.handle)
	defer s.queues.release(k.handle, q)
	if err := c.valid(); err != nil {
		return err
	}
	file, err := q.next(func() (file int, err error) {
		err = unix.EINTR // of a signal to this process (vsock_accept)
		for errors.Is(err, unix.EINTR) {
			err = s.withoutWaiting(k.file, func() error {
				file, _, err = unix.Accept4(k.file, unix.SOCK_CLOEXEC)
				return err
			})
		}
		return file, err
	})
	if err != nil {
		return err
	}
	err = s.tellPeer(c, file)
	keep := errors.Is(err, seccomp.ErrStale) // else it ends, as the kernel ends one whose name has no room
	if err == nil {
		err = s.hand(c, file, flags)
		keep = err != nil
	}
	if keep {
		q.files = append([]int{file}, q.files...)
	} else {
		unix.Close(file)
	}
	return err
}

// tellPeer writes the name of a connection's peer where accept(2) wants it.
func (s *supervisor) tellPeer(c *caller, file int) error {
	if c.Args[1] == 0 {
		return nil
	}
	handle, port, _ := handleOf(file)
	handle, err := s.which(handle, port)
	if err != nil {
		return err
	}
	_, peer, err := s.names(handle)
	if err != nil {
		return err
	}
	return c.give(sockaddr.Bytes(peer), c.Args[1], c.Args[2], true)
}

// hand gives a program a connection, and answers its call with the number.
func (s *supervisor) hand(c *caller, file, flags int) error {
	if err := unix.SetNonblock(file, flags&unix.SOCK_NONBLOCK != 0); err != nil {
		return faultOf(err)
	}
	a := seccomp.AddFD{ID: c.ID, File: uint32(file)}
	if flags&unix.SOCK_CLOEXEC != 0 {
		a.NewFlags = unix.O_CLOEXEC
	}
	return s.listener.AddAndAnswer(&a) // the program's limits are its errno
}

// which returns the handle of a connection. If the connection's names do not say it, they say the listener
// and the host's port.
func (s *supervisor) which(handle, port uint32) (uint32, error) {
	if port == 0 {
		return handle, nil
	}
	reply, err := s.control.call(&wire.Message{Op: wire.Which, Handle: handle, Number: port})
	if err == nil && reply.Errno != 0 {
		err = fmt.Errorf("the host knows no connection of listener %d from port %d", handle, port)
	}
	if err != nil {
		return 0, faultOf(err)
	}
	return reply.Handle, nil
}

// names returns the names of a handle's socket and of its peer.
func (s *supervisor) names(handle uint32) (own, peer netip.AddrPort, err error) {
	reply, err := s.control.call(&wire.Message{Op: wire.Names, Handle: handle})
	if err != nil {
		return own, peer, faultOf(err)
	}
	return reply.Name, reply.Peer, nil
}

// name answers getsockname(2) and getpeername(2).
func (s *supervisor) name(c *caller, k *kind, peer bool) (answer, error) {
	name, to, err := s.names(k.handle)
	if err != nil {
		return carryOn, err
	}
	if peer {
		if name = to; !k.connected || !to.IsValid() {
			return answer{errno: unix.ENOTCONN}, nil
		}
	}
	if !name.IsValid() {
		return carryOn, fmt.Errorf("handle %d has no name", k.handle)
	}
	return answer{}, c.give(sockaddr.Bytes(name), c.Args[1], c.Args[2], true)
}
