package afgraft

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// Caller is the program's side of one call.
type Caller interface {
	// AFGraft returns what belongs to the socket of a descriptor, or false if the descriptor is
	// of no AF_GRAFT socket.
	AFGraft(number int) (State, bool, error)
	// Take takes the socket of a descriptor for this call, or returns nil if it is no AF_GRAFT
	// one. Who holds a socket must not use the program's memory, which may take for ever.
	Take(number int) (*Socket, error)
	// ReadAt and WriteAt use the program's memory. Where there is none, the error is EFAULT.
	ReadAt(at uint64, b []byte) error
	WriteAt(at uint64, b []byte) error
}

// Reply says what a call returns.
type Reply struct {
	// Ours is false if the call is none of an AF_GRAFT socket, or not one that such a socket
	// treats in another way: the kernel carries on with it.
	Ours  bool
	Errno unix.Errno // of a call that is ours; 0: it succeeds
}

func succeed() Reply              { return Reply{Ours: true} }
func fail(errno unix.Errno) Reply { return Reply{true, errno} }

func orFault(err error, errno unix.Errno) (Reply, error) {
	if errors.Is(err, unix.EFAULT) {
		return fail(errno), nil
	}
	return Reply{}, err
}

// withSocket calls fn with the socket of a descriptor, if it is an AF_GRAFT one.
func withSocket(c Caller, number int, fn func(*Socket) (unix.Errno, error)) (Reply, error) {
	s, err := c.Take(number)
	if s == nil {
		return Reply{}, err
	}
	defer s.Close()
	errno, err := fn(s)
	if err != nil {
		return Reply{}, err
	}
	return fail(errno), nil
}

// SetOption answers setsockopt(2). The value is read once, and acted upon here; where the
// kernel carries on, it is with an option that is no AF_GRAFT socket's, or one for this socket
// at once, which the kernel programs judge by themselves.
func SetOption(c Caller, number, level, name int, at uint64, length int) (Reply, error) {
	state, is, err := c.AFGraft(number)
	if !is || (level != Level && (!state.Delayed || level == unix.SOL_SOCKET)) {
		return Reply{}, err
	}
	size, errno := valueSize(level, name, length)
	if errno != 0 {
		return fail(errno), nil
	}
	value := make([]byte, size)
	if err := c.ReadAt(at, value); err != nil {
		return orFault(err, unix.EINVAL)
	}
	return withSocket(c, number, func(s *Socket) (unix.Errno, error) { return s.set(level, name, value) })
}

// set sets an option, or queues it.
func (s *Socket) set(level, name int, value []byte) (unix.Errno, error) {
	if level != Level {
		return s.delay(level, name, value)
	}
	switch name {
	case soDelayed:
		return 0, s.setDelayed(isOn(value))
	case nameTransparent:
		return 0, s.setNameTransparent(isOn(value))
	case soDelayedExecute:
		return s.execute()
	}
	level, name, value, ok := parseTransparent(value)
	if !ok {
		return unix.EINVAL, nil
	}
	return s.setTransparent(level, name, value)
}

// GetOption answers getsockopt(2). The value is written at, and its length where length
// points. An int is given whole, whatever length the program says: those written for the
// original pass one that they never set.
func GetOption(c Caller, number, level, name int, at, length uint64) (Reply, error) {
	state, is, err := c.AFGraft(number)
	if !is || level != Level {
		return Reply{}, err
	}
	switch name {
	case soDelayed:
		return giveInt(c, at, length, state.Delayed)
	case nameTransparent:
		return giveInt(c, at, length, state.NameTransparent)
	case soDelayedResult:
		return giveResults(c, number, at, length)
	}
	return fail(unix.ENOPROTOOPT), nil
}

func giveInt(c Caller, at, length uint64, on bool) (Reply, error) {
	var value uint32
	if on {
		value = 1
	}
	return give(c, at, length, binary.NativeEndian.AppendUint32(nil, value), intSize, succeed())
}

// give writes a value and then its length, and returns the reply if the program has room
// for both.
func give(c Caller, at, length uint64, value []byte, size int, reply Reply) (Reply, error) {
	err := c.WriteAt(at, value)
	if err == nil {
		err = c.WriteAt(length, binary.NativeEndian.AppendUint32(nil, uint32(size)))
	}
	if err != nil {
		return orFault(err, unix.EFAULT)
	}
	return reply, nil
}

// readLength reads the room that the program has for a value.
func readLength(c Caller, length uint64) (int, error) {
	var b [intSize]byte
	err := c.ReadAt(length, b[:])
	return int(int32(binary.NativeEndian.Uint32(b[:]))), err
}

// giveResults writes as many results as there is room for. If that is not all, the call
// fails, and the program finds the rest with its next.
func giveResults(c Caller, number int, at, length uint64) (Reply, error) {
	room, err := readLength(c, length)
	if err != nil {
		return orFault(err, unix.EFAULT)
	}
	var done []Option
	reply, err := withSocket(c, number, func(s *Socket) (_ unix.Errno, err error) {
		done, err = s.results()
		return 0, err
	})
	if err != nil || reply != succeed() {
		return reply, err
	}
	if n := max(room, 0) / resultSize; n < len(done) {
		done, reply = done[:n], fail(unix.ENOBUFS)
	}
	var b []byte
	for _, o := range done {
		b = appendResult(b, o)
	}
	given, err := give(c, at, length, b, len(b), reply)
	if err != nil || given != reply {
		return given, err
	}
	_, err = withSocket(c, number, func(s *Socket) (unix.Errno, error) { return 0, s.forget(done) })
	return reply, err
}

// GetName answers getsockname(2). The address is written at, and its length where length
// points.
func GetName(c Caller, number int, at, length uint64) (Reply, error) {
	state, is, err := c.AFGraft(number)
	if !is || (state.NameTransparent && state.Name != "") {
		return Reply{}, err // the kernel knows it
	}
	addr := address(state.Name)
	if state.NameTransparent {
		addr = nil // there is no host socket yet
	}
	room, err := readLength(c, length)
	if err != nil {
		return orFault(err, unix.EFAULT)
	}
	if room < 0 {
		return fail(unix.EINVAL), nil
	}
	return give(c, at, length, addr[:min(room, len(addr))], len(addr), succeed())
}
