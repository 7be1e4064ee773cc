package notify

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/internal/sys/seccomp"
	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
)

// The kernel would tell the IPv6 names of translated sockets and of their peers. So getsockname(2),
// getpeername(2) and accept(2) are answered here.
//
// Time of check. The file is duplicated once, and only the duplicate is asked. The length is read
// once. The answer is written only where the caller could write itself. If the file is no
// translated socket, the kernel carries on: with a translated one that a thread has put under the
// number meanwhile, the program learns the IPv6 address of a peer that its rules let it reach, and
// nothing else.
//
// accept(2) is answered for listeners of two network namespaces, too (graft/own.go). If a thread has put
// such a listener under the number meanwhile, the program may get a marker, and the connection that the
// marker stands for is reset.

// name answers the calls for names.
func (s *Supervisor) name(p *program) (graft.Answer, error) {
	r := p.request
	if r.WantsMemory {
		s.giveMemory(p)
	}
	switch r.Name {
	case gate.AcceptName:
		return s.accept(p)
	case gate.AcceptedName:
		return s.nameAccepted(p)
	case gate.WaitName:
		return graft.Answer{}, s.lookForSignals(p)
	}
	name, answer, err := s.engine.Name(p, r.Number, r.Name == gate.PeerName)
	if err != nil || !name.IsValid() {
		return answer, err
	}
	return orFault(giveName(p, name, r.Args[1], r.Args[2]))
}

// giveMemory gives the gate the caller's memory, so that the gate writes names itself from now on.
func (s *Supervisor) giveMemory(p *program) {
	m, err := p.memory()
	if err == nil {
		err = s.gate.GiveMemory(p.request, m.File())
		m.Close()
	}
	if err != nil {
		s.log.Debug("the gate asks again for memory", "pid", p.request.Thread, "err", err)
	}
}

// nameAccepted names the peer of a connection that the gate has accepted. As a rule the gate keeps the
// connection, and answers the call. Else the program has the connection already, and gets its number whatever
// happens, unless it has unmapped the place for the name meanwhile.
func (s *Supervisor) nameAccepted(p *program) (graft.Answer, error) {
	r := p.request
	s.waiting.forget(r.ID)
	if peer, ok := sockaddr.Parse(r.Address); ok && r.Number < 0 {
		if err := s.gate.GiveName(r, s.engine.PeerName(peer)); err != nil {
			return s.takeBack(p, nil, err)
		}
		return graft.Answer{}, errWaits
	}
	name, _, err := s.engine.Name(p, r.Number, true)
	if err == nil && name.IsValid() {
		var errno unix.Errno
		if errno, err = giveName(p, name, r.Args[1], r.Args[2]); errno != 0 {
			return fail(errno), nil
		}
	}
	if errors.Is(err, seccomp.ErrStale) {
		return graft.Answer{}, err
	}
	if err != nil {
		s.log.Error("name the peer of a connection", "pid", r.Thread, "fd", r.Number, "err", err)
	}
	return graft.Answer{Action: graft.Succeed, Value: r.Number}, nil
}

// acceptFlags are those of accept4(2). The kernel refuses others.
const acceptFlags = unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC

// accept answers accept(2) on a translated listener, and on one of two namespaces. A call that waits for a connection takes no
// place meanwhile.
func (s *Supervisor) accept(p *program) (graft.Answer, error) {
	r := p.request
	flags := intArg(r, 3)
	if flags&^acceptFlags != 0 {
		return graft.Answer{}, nil
	}
	s.waiting.forget(r.ID)
	woken := uint64(watched)
	if p.waited != nil {
		woken = p.waited.cookie
	}
	conn, waits, answer, err := s.engine.Accept(p, r.Number)
	switch {
	case err != nil && (answer.Action == graft.Fail || p.waited != nil || r.Waits):
		// The listener may have markers, or is translated.
		answer, err = s.takeBack(p, nil, err)
	// O_NONBLOCK of the listener may be the gate's, for a moment (gate/c/accepts.c).
	case waits || (p.waited != nil || r.Waits) && answer == fail(unix.EAGAIN):
		answer, err = s.await(p)
		if err != nil && !errors.Is(err, errWaits) && !errors.Is(err, unix.EBADF) { // the program may have closed the listener
			answer, err = s.takeBack(p, nil, err)
		}
	}
	s.passOn(woken)
	if conn == nil {
		return answer, err
	}
	errno, err := s.prepare(p, conn, flags)
	if errno != 0 {
		unix.Close(conn.File) // as the kernel does
		return fail(errno), nil
	}
	if err != nil {
		return s.takeBack(p, conn, err)
	}
	p.accepted = conn
	return graft.Answer{Action: graft.Give, File: conn.File}, nil
}

// prepare does to a connection what the program finds done: its peer's name is written, and the flags
// of accept4(2) are set.
func (s *Supervisor) prepare(p *program, conn *graft.Connection, flags int) (errno unix.Errno, err error) {
	if flags&unix.SOCK_NONBLOCK != 0 {
		if _, err := unix.FcntlInt(uintptr(conn.File), unix.F_SETFL, unix.O_NONBLOCK); err != nil {
			return 0, err
		}
	}
	if p.request.Args[1] == 0 {
		return 0, nil
	}
	return giveName(p, conn.Peer, p.request.Args[1], p.request.Args[2])
}

// reply answers a call, with the connection that it has accepted or the socket that was made for it, if there is one.
func (s *Supervisor) reply(p *program, answer graft.Answer) error {
	r := p.request
	if answer.Action != graft.Give {
		return s.answer(r, answer)
	}
	err := s.deliver(r, answer.File)
	if err == nil {
		return nil
	}
	limit, fault := orRefusal(err)
	switch {
	case p.accepted != nil && fault != nil:
		limit, fault = s.takeBack(p, p.accepted, err)
	case p.accepted != nil:
		p.accepted.GiveBack()
	default:
		unix.Close(answer.File)
	}
	if errors.Is(fault, seccomp.ErrStale) {
		return fault
	}
	if fault != nil {
		s.log.Error("socket not given to the program", "pid", r.Thread, "err", err)
	} else {
		s.countRefusal(r.Call)
	}
	return s.answer(r, limit)
}

// takeBack takes a connection back that the program could not be given because of a fault of ours, and says how the
// call ends. The kernel must not carry on: it would give the program the marker of the connection (graft/own.go).
// So the program hears of a connection that went, after which programs call again. Without a connection, it is
// the same.
func (s *Supervisor) takeBack(p *program, conn *graft.Connection, err error) (graft.Answer, error) {
	if conn != nil {
		conn.GiveBack()
	}
	if errors.Is(err, seccomp.ErrStale) {
		return graft.Answer{}, err
	}
	s.log.Error("connection not given to the program", "pid", p.request.Thread, "err", err)
	return fail(unix.ECONNABORTED), nil
}

// deliver installs a file in the program, and answers the call with its number: by one ioctl, else
// a signal in between leaves the program a descriptor that it does not know of. If a signal came first,
// somebody else gets the connection.
//
// The program goes on before the duplicate of a connection is closed, which keeps the connection's port.
func (s *Supervisor) deliver(r gate.Request, file int) error {
	s.delivers.RLock()
	defer s.delivers.RUnlock()
	flags := intArg(r, 3) // of accept4(2)
	if r.Call == gate.Socket {
		flags = intArg(r, 1)
	}
	a := seccomp.AddFD{ID: r.ID, File: uint32(file)}
	if flags&unix.SOCK_CLOEXEC != 0 {
		a.NewFlags = unix.O_CLOEXEC
	}
	if err := s.listener.AddAndAnswer(&a); err != nil {
		return fmt.Errorf("add descriptor: %w", err)
	}
	unix.Close(file)
	return nil
}

// awaitDeliveries waits until connections that are being delivered have no duplicates here.
func (s *Supervisor) awaitDeliveries() {
	s.delivers.Lock()
	s.delivers.Unlock() //nolint:staticcheck // it has waited
}

// orRefusal makes the program's own limits its errno.
func orRefusal(err error) (graft.Answer, error) {
	for _, errno := range []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOMEM} {
		if errors.Is(err, errno) {
			return fail(errno), nil
		}
	}
	return graft.Answer{}, err
}

func orFault(errno unix.Errno, err error) (graft.Answer, error) {
	if err != nil || errno != 0 {
		return fail(errno), err
	}
	return succeed(), nil
}

// giveName writes a sockaddr where the program has room for it, and its size, as the
// kernel does.
func giveName(p *program, name netip.AddrPort, at, length uint64) (unix.Errno, error) {
	sa := sockaddr.Bytes(name)
	m, err := p.memory()
	if err != nil {
		return 0, err
	}
	defer m.Close()
	var size [4]byte
	err = m.Read(length, size[:])
	room := int32(binary.NativeEndian.Uint32(size[:]))
	if err == nil && room < 0 {
		return unix.EINVAL, nil
	}
	if err == nil && room > 0 {
		err = m.Write(at, sa[:min(int(room), len(sa))])
	}
	if err == nil {
		binary.NativeEndian.PutUint32(size[:], uint32(len(sa)))
		err = m.Write(length, size[:])
	}
	if errors.Is(err, unix.EFAULT) {
		return unix.EFAULT, nil
	}
	return 0, err
}
