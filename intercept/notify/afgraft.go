package notify

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/afgraft"
	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/graft"
)

// The calls of programs that are written for AF_GRAFT, whose layouts and errnos
// are those of include/tsugiki/graft.h.

// gateAddressMax is what the gate reads of an address.
const gateAddressMax = 28

func succeed() graft.Answer              { return graft.Answer{Action: graft.Succeed} }
func fail(errno unix.Errno) graft.Answer { return graft.Answer{Action: graft.Fail, Errno: errno} }
func intArg(a gate.Ask, i int) int       { return int(int32(a.Args[i])) }
func orFault(err error, errno unix.Errno) (graft.Answer, error) {
	if errors.Is(err, errFault) {
		return fail(errno), nil
	}
	return graft.Answer{}, err
}

// withAFGraft calls fn for an AF_GRAFT socket, which no other call changes meanwhile:
// fn must not wait for the program's memory. Another descriptor's call is the
// kernel's.
func (s *Supervisor) withAFGraft(p *program, number int, fn func(*graft.AFGraftSocket) (graft.Answer, error)) (graft.Answer, error) {
	g, err := s.engine.AFGraft(p, number)
	if g == nil {
		return graft.Answer{}, err
	}
	defer g.Close()
	return fn(g)
}

// bindAFGraft acts on the address that the gate has read.
func (s *Supervisor) bindAFGraft(p *program, a gate.Ask) (graft.Answer, error) {
	length := intArg(a, 2)
	return s.withAFGraft(p, a.Number, func(g *graft.AFGraftSocket) (graft.Answer, error) {
		if length < afgraft.AddressSize || length > afgraft.AddressMax {
			return fail(unix.EINVAL), nil
		}
		name, whole := afgraft.ParseAddress(a.Address)
		if !whole || len(a.Address) < min(length, gateAddressMax) {
			return fail(unix.EFAULT), nil
		}
		return g.Bind(name)
	})
}

// setOption answers setsockopt(2). The value is read once, and acted upon here;
// where the kernel carries on, it is with an option that is no AF_GRAFT socket's,
// or one for this socket at once, which the kernel programs judge by themselves.
func (s *Supervisor) setOption(p *program, a gate.Ask) (graft.Answer, error) {
	level, name := intArg(a, 1), intArg(a, 2)
	state, is, err := s.engine.AFGraftState(p, a.Number)
	if !is || (level != afgraft.Level && (!state.Delayed || level == unix.SOL_SOCKET)) {
		return graft.Answer{}, err
	}
	size, errno := afgraft.ValueSize(level, name, intArg(a, 4))
	if errno != 0 {
		return fail(errno), nil
	}
	value := make([]byte, size)
	if err := p.readAt(a.Args[3], value); err != nil {
		return orFault(err, unix.EINVAL)
	}
	return s.withAFGraft(p, a.Number, func(g *graft.AFGraftSocket) (graft.Answer, error) {
		return setAFGraftOption(g, level, name, value)
	})
}

func setAFGraftOption(g *graft.AFGraftSocket, level, name int, value []byte) (graft.Answer, error) {
	if level != afgraft.Level {
		return g.Delay(level, name, value)
	}
	switch name {
	case afgraft.SoDelayed:
		return succeed(), g.SetDelayed(afgraft.IsOn(value))
	case afgraft.NameTransparent:
		return succeed(), g.SetNameTransparent(afgraft.IsOn(value))
	case afgraft.SoDelayedExecute:
		return g.Execute()
	}
	level, name, value, ok := afgraft.ParseTransparent(value)
	if !ok {
		return fail(unix.EINVAL), nil
	}
	return g.SetTransparent(level, name, value)
}

// getOption answers getsockopt(2). An int is given whole, whatever length the
// program says: those written for the original pass one that they never set.
func (s *Supervisor) getOption(p *program, a gate.Ask) (graft.Answer, error) {
	state, is, err := s.engine.AFGraftState(p, a.Number)
	if !is || intArg(a, 1) != afgraft.Level {
		return graft.Answer{}, err
	}
	switch intArg(a, 2) {
	case afgraft.SoDelayed:
		return p.giveInt(a, state.Delayed)
	case afgraft.NameTransparent:
		return p.giveInt(a, state.NameTransparent)
	case afgraft.SoDelayedResult:
		return s.giveResults(p, a)
	}
	return fail(unix.ENOPROTOOPT), nil
}

func (p *program) giveInt(a gate.Ask, on bool) (graft.Answer, error) {
	var value uint32
	if on {
		value = 1
	}
	err := p.writeAt(a.Args[3], binary.NativeEndian.AppendUint32(nil, value))
	if err == nil {
		err = p.writeInt(a.Args[4], afgraft.IntSize)
	}
	if err != nil {
		return orFault(err, unix.EFAULT)
	}
	return succeed(), nil
}

// giveResults writes as many results as there is room for. If that is not all, the
// call fails, and the program finds the rest with its next.
func (s *Supervisor) giveResults(p *program, a gate.Ask) (graft.Answer, error) {
	room, err := p.readInt(a.Args[4])
	if err != nil {
		return orFault(err, unix.EFAULT)
	}
	var done []afgraft.Option
	answer, err := s.withAFGraft(p, a.Number, func(g *graft.AFGraftSocket) (_ graft.Answer, err error) {
		done, err = g.Results()
		return succeed(), err
	})
	if err != nil || answer != succeed() {
		return answer, err
	}
	if n := max(room, 0) / afgraft.ResultSize; n < len(done) {
		done, answer = done[:n], fail(unix.ENOBUFS)
	}
	var b []byte
	for _, o := range done {
		b = afgraft.AppendResult(b, o)
	}
	err = p.writeAt(a.Args[3], b)
	if err == nil {
		err = p.writeInt(a.Args[4], len(b))
	}
	if err != nil {
		return orFault(err, unix.EFAULT)
	}
	_, err = s.withAFGraft(p, a.Number, func(g *graft.AFGraftSocket) (graft.Answer, error) {
		return graft.Answer{}, g.Forget(done)
	})
	return answer, err
}

// getName answers getsockname(2).
func (s *Supervisor) getName(p *program, a gate.Ask) (graft.Answer, error) {
	state, is, err := s.engine.AFGraftState(p, a.Number)
	if !is || (state.NameTransparent && state.Name != "") {
		return graft.Answer{}, err // the kernel knows it
	}
	addr := afgraft.Address(state.Name)
	if state.NameTransparent {
		addr = nil // there is no host socket yet
	}
	room, err := p.readInt(a.Args[2])
	if err != nil {
		return orFault(err, unix.EFAULT)
	}
	if room < 0 {
		return fail(unix.EINVAL), nil
	}
	err = p.writeAt(a.Args[1], addr[:min(room, len(addr))])
	if err == nil {
		err = p.writeInt(a.Args[2], len(addr))
	}
	if err != nil {
		return orFault(err, unix.EFAULT)
	}
	return succeed(), nil
}
