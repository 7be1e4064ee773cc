package notify

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/graft"
)

// The calls of programs that are written for AF_GRAFT, whose layouts and errnos
// are those of include/tsugiki/graft.h.

const (
	familyGraft     = unix.AF_IPX
	levelGraft      = 254
	graftNameMax    = 16
	sockaddrGrSize  = 2 + graftNameMax
	sockaddrMax     = 128 // struct sockaddr_storage: the kernel takes none longer
	gateAddressMax  = 28  // what the gate reads of one
	transparentMax  = 128
	transparentHead = 12
	resultSize      = 12
	intSize         = 4
	delayedMax      = 128 // GRAFT_VALUE_MAX of bpf/policy.h
)

// The options at levelGraft.
const (
	soDelayed = iota + 1
	soDelayedExecute
	soDelayedResult
	soTransparent
	nameTransparent
)

func succeed() graft.Answer              { return graft.Answer{Action: graft.Succeed} }
func fail(errno unix.Errno) graft.Answer { return graft.Answer{Action: graft.Fail, Errno: errno} }
func isGraftAddr(b []byte) bool          { return len(b) >= 2 && binary.NativeEndian.Uint16(b) == familyGraft }
func intArg(a gate.Ask, i int) int       { return int(int32(a.Args[i])) }
func orFault(err error, errno unix.Errno) (graft.Answer, error) {
	if errors.Is(err, errFault) {
		return fail(errno), nil
	}
	return graft.Answer{}, err
}

// parseSockaddrGr reads the endpoint's name out of a struct sockaddr_gr.
func parseSockaddrGr(b []byte) (string, bool) {
	if len(b) < sockaddrGrSize || !isGraftAddr(b) {
		return "", false
	}
	name := b[2:sockaddrGrSize]
	for i, c := range name {
		if c == 0 {
			return string(name[:i]), true
		}
	}
	return string(name), true
}

func sockaddrGr(name string) []byte {
	b := make([]byte, sockaddrGrSize)
	binary.NativeEndian.PutUint16(b, familyGraft)
	copy(b[2:], name)
	return b
}

// parseTransparent reads a struct graft_sso_trans.
func parseTransparent(b []byte) (level, name int, value []byte, ok bool) {
	if len(b) < transparentHead || len(b) > transparentMax {
		return 0, 0, nil, false
	}
	e := binary.NativeEndian
	size := e.Uint32(b[8:])
	if uint64(size) > uint64(len(b)-transparentHead) {
		return 0, 0, nil, false
	}
	return int(int32(e.Uint32(b))), int(int32(e.Uint32(b[4:]))), b[transparentHead : transparentHead+size], true
}

// appendResult writes a struct graft_sso_result.
func appendResult(b []byte, o graft.DelayedOption) []byte {
	for _, n := range []int{o.Level, o.Name, o.Result} {
		b = binary.NativeEndian.AppendUint32(b, uint32(int32(n)))
	}
	return b
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
		if length < sockaddrGrSize || length > sockaddrMax {
			return fail(unix.EINVAL), nil
		}
		name, whole := parseSockaddrGr(a.Address)
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
	if !is || (level != levelGraft && (!state.Delayed || level == unix.SOL_SOCKET)) {
		return graft.Answer{}, err
	}
	size, errno := valueSize(level, name, intArg(a, 4))
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

// valueSize is how much there is to read of an option's value, or what is wrong
// with it.
func valueSize(level, name, length int) (int, unix.Errno) {
	switch {
	case length < 0:
		return 0, unix.EINVAL
	case level != levelGraft && length > delayedMax:
		return 0, unix.ENOBUFS
	case level != levelGraft:
		return length, 0
	}
	switch name {
	case soDelayed, nameTransparent:
		if length > intSize {
			return 0, unix.EINVAL
		}
		return intSize, 0
	case soDelayedExecute:
		return 0, 0
	case soTransparent:
		if length > transparentMax {
			return 0, unix.EINVAL
		}
		return length, 0
	}
	return 0, unix.ENOPROTOOPT
}

func setAFGraftOption(g *graft.AFGraftSocket, level, name int, value []byte) (graft.Answer, error) {
	if level != levelGraft {
		return g.Delay(level, name, value)
	}
	switch name {
	case soDelayed:
		return succeed(), g.SetDelayed(isOn(value))
	case nameTransparent:
		return succeed(), g.SetNameTransparent(isOn(value))
	case soDelayedExecute:
		return g.Execute()
	}
	level, name, value, ok := parseTransparent(value)
	if !ok {
		return fail(unix.EINVAL), nil
	}
	return g.SetTransparent(level, name, value)
}

func isOn(value []byte) bool { return int32(binary.NativeEndian.Uint32(value)) > 0 }

// getOption answers getsockopt(2). An int is given whole, whatever length the
// program says: those written for the original pass one that they never set.
func (s *Supervisor) getOption(p *program, a gate.Ask) (graft.Answer, error) {
	state, is, err := s.engine.AFGraftState(p, a.Number)
	if !is || intArg(a, 1) != levelGraft {
		return graft.Answer{}, err
	}
	switch intArg(a, 2) {
	case soDelayed:
		return p.giveInt(a, state.Delayed)
	case nameTransparent:
		return p.giveInt(a, state.NameTransparent)
	case soDelayedResult:
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
		err = p.writeInt(a.Args[4], intSize)
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
	var done []graft.DelayedOption
	answer, err := s.withAFGraft(p, a.Number, func(g *graft.AFGraftSocket) (_ graft.Answer, err error) {
		done, err = g.Results()
		return succeed(), err
	})
	if err != nil || answer != succeed() {
		return answer, err
	}
	if n := max(room, 0) / resultSize; n < len(done) {
		done, answer = done[:n], fail(unix.ENOBUFS)
	}
	var b []byte
	for _, o := range done {
		b = appendResult(b, o)
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
	addr := sockaddrGr(state.Name)
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
