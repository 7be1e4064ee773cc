package afgraft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/endpoint"
)

// fakeCaller is a program that has one AF_GRAFT socket, at descriptor 3, and some memory.
// It is the Store of what belongs to that socket, too.
type fakeCaller struct {
	t       *testing.T
	state   State
	options []Option
	memory  map[uint64][]byte // what is not in here is nowhere
	taken   bool
	fault   error // of the store
	setErr  error // of Socket.Set
}

const (
	grafted = 3
	other   = 4
	file    = 77 // of the socket, for the Store
	nowhere = 0xbad
	valueAt = 0x1000
	sizeAt  = 0x2000
)

func (c *fakeCaller) AFGraft(number int) (State, bool, error) {
	if c.fault != nil {
		return State{}, false, c.fault
	}
	if number == grafted || number == file {
		return c.state, true, nil
	}
	return State{}, false, nil
}

func (c *fakeCaller) Take(number int) (*Socket, error) {
	if number != grafted {
		return nil, nil
	}
	if c.taken {
		c.t.Error("the socket is taken twice")
	}
	c.taken = true
	return &Socket{File: file, State: c.state, Store: c, Set: c.set, Close: func() { c.taken = false }}, nil
}

// set refuses the option -1, as the kernel would.
func (c *fakeCaller) set(at int, options []Option) error {
	if at != file {
		c.t.Errorf("options are set on the file %d", at)
	}
	if c.setErr != nil {
		return c.setErr
	}
	for i := range options {
		if options[i].Done {
			continue
		}
		options[i].Done = true
		if options[i].Name == -1 {
			options[i].Result = -int(unix.EPERM)
		}
	}
	return nil
}

func (c *fakeCaller) ReadAt(at uint64, b []byte) error {
	return c.access(at, b, func(m []byte) { copy(b, m) })
}

func (c *fakeCaller) WriteAt(at uint64, b []byte) error {
	return c.access(at, b, func(m []byte) { copy(m, b) })
}

func (c *fakeCaller) access(at uint64, b []byte, do func([]byte)) error {
	if c.taken {
		c.t.Error("memory is used while the socket is taken")
	}
	if len(b) > 0 && len(c.memory[at]) < len(b) {
		return unix.EFAULT
	}
	do(c.memory[at])
	return nil
}

func (c *fakeCaller) SetAFGraft(_ int, s State) error {
	c.state = s
	return c.fault
}

func (c *fakeCaller) AFGraftOptions(int) ([]Option, error) { return slices.Clone(c.options), c.fault }

// SetAFGraftOptions has room for four.
func (c *fakeCaller) SetAFGraftOptions(_ int, options []Option) error {
	if len(options) > 4 {
		return ErrQueueFull
	}
	c.options = slices.Clone(options)
	return c.fault
}

func (c *fakeCaller) Name(*endpoint.Endpoint, func() bool) (uint32, error) {
	return 0, errors.ErrUnsupported
}
func (c *fakeCaller) Withdraw(*endpoint.Endpoint) error { return errors.ErrUnsupported }

func ints(numbers ...int32) []byte {
	var b []byte
	for _, n := range numbers {
		b = binary.NativeEndian.AppendUint32(b, uint32(n))
	}
	return b
}

var (
	bound   = State{Name: "web"}
	delayed = State{Delayed: true}
	kernels = Reply{}
)

// What setsockopt(2) returns, and what it leaves with the socket.
func TestSetOption(t *testing.T) {
	waits := func(level, name int, value []byte) Option { return Option{Level: level, Name: name, Value: value} }
	full := []Option{{Name: 1}, {Name: 2}, {Name: 3}, {Name: 4}}
	for _, tt := range []struct {
		name          string
		state         State
		options       []Option
		number        int
		level, option int
		value         []byte
		length        int // if not that of the value
		at            uint64

		want      Reply
		wantState State
		wantQueue []Option
	}{
		{name: "another descriptor", number: other, level: Level, option: soDelayed, value: ints(1), want: kernels},
		{name: "an option of the host socket", level: unix.SOL_TCP, option: 1, value: ints(1), want: kernels},
		{name: "an option that has to be delayed", state: delayed, level: unix.SOL_TCP, option: 1, value: ints(5), want: succeed(), wantState: delayed, wantQueue: []Option{waits(unix.SOL_TCP, 1, ints(5))}},
		{name: "SOL_SOCKET is never delayed", state: delayed, level: unix.SOL_SOCKET, option: 2, value: ints(1), want: kernels, wantState: delayed},
		{name: "one too many", state: delayed, options: full, level: unix.SOL_TCP, option: 1, value: ints(5), want: fail(unix.ENOBUFS), wantState: delayed, wantQueue: full},
		{name: "one too long", state: delayed, level: unix.SOL_TCP, option: 1, value: make([]byte, 129), want: fail(unix.ENOBUFS), wantState: delayed},
		{name: "a negative length", state: delayed, level: unix.SOL_TCP, option: 1, length: -1, want: fail(unix.EINVAL), wantState: delayed},
		{name: "a pointer that leads nowhere", level: Level, option: soDelayed, at: nowhere, length: 4, want: fail(unix.EINVAL)},

		{name: "delay", level: Level, option: soDelayed, value: ints(1), want: succeed(), wantState: delayed},
		{name: "delay no more", state: delayed, level: Level, option: soDelayed, value: ints(0), want: succeed()},
		{name: "below 0 is off", state: delayed, level: Level, option: soDelayed, value: ints(-1), want: succeed()},
		{name: "a long int", level: Level, option: soDelayed, value: make([]byte, 8), want: fail(unix.EINVAL)},
		{name: "the host's name", level: Level, option: nameTransparent, value: ints(1), want: succeed(), wantState: State{NameTransparent: true}},

		{name: "execute before bind", level: Level, option: soDelayedExecute, want: fail(unix.EADDRNOTAVAIL)},
		{name: "execute nothing", state: bound, level: Level, option: soDelayedExecute, want: succeed(), wantState: bound},
		{
			name: "execute", state: bound, options: []Option{waits(6, -1, nil), waits(6, 1, nil), {Level: 6, Name: 2, Done: true, Result: -5}}, level: Level, option: soDelayedExecute,
			want: succeed(), wantState: bound, wantQueue: []Option{{Level: 6, Name: -1, Done: true, Result: -int(unix.EPERM)}, {Level: 6, Name: 1, Done: true}, {Level: 6, Name: 2, Done: true, Result: -5}},
		},

		{name: "transparent before bind", level: Level, option: soTransparent, value: transparentBytes(6, 1, 0), want: fail(unix.EADDRNOTAVAIL)},
		{name: "transparent", state: bound, level: Level, option: soTransparent, value: transparentBytes(6, 1, 0), want: succeed(), wantState: bound},
		{name: "transparent, refused", state: bound, level: Level, option: soTransparent, value: transparentBytes(6, -1, 0), want: fail(unix.EPERM), wantState: bound},
		{name: "transparent, delayed", state: delayed, level: Level, option: soTransparent, value: transparentBytes(6, 1, 1, 9), want: succeed(), wantState: delayed, wantQueue: []Option{waits(6, 1, []byte{9})}},
		{name: "transparent, too long", state: bound, level: Level, option: soTransparent, value: make([]byte, 129), want: fail(unix.EINVAL), wantState: bound},
		{name: "transparent, cut short", state: bound, level: Level, option: soTransparent, value: ints(1, 1), want: fail(unix.EINVAL), wantState: bound},
		{name: "no option", level: Level, option: 99, value: ints(1), want: fail(unix.ENOPROTOOPT)},
		{name: "results cannot be set", level: Level, option: soDelayedResult, value: ints(1), want: fail(unix.ENOPROTOOPT)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &fakeCaller{t: t, state: tt.state, options: tt.options, memory: map[uint64][]byte{valueAt: tt.value}}
			number, at, length := grafted, uint64(valueAt), len(tt.value)
			if tt.number != 0 {
				number = tt.number
			}
			if tt.at != 0 {
				at = tt.at
			}
			if tt.length != 0 {
				length = tt.length
			}
			got, err := SetOption(c, number, tt.level, tt.option, at, length)
			if got != tt.want || err != nil {
				t.Errorf("%+v, %v; want %+v", got, err, tt.want)
			}
			if c.state != tt.wantState {
				t.Errorf("the state is %+v, want %+v", c.state, tt.wantState)
			}
			if diff := cmp.Diff(tt.wantQueue, c.options); diff != "" {
				t.Errorf("queue (-want +got):\n%s", diff)
			}
		})
	}
}

// What getsockopt(2) returns and writes, and which results are left.
func TestGetOption(t *testing.T) {
	done := func(name int) Option { return Option{Level: 6, Name: name, Done: true, Result: -name} }
	waits := Option{Level: 6, Name: 9}
	for _, tt := range []struct {
		name          string
		state         State
		options       []Option
		number        int
		level, option int
		room          int32
		noValue       bool // there is no memory for the value
		noLength      bool // nor for the length

		want     Reply
		wrote    []byte
		length   int32
		wantLeft []Option
	}{
		{name: "another descriptor", number: other, level: Level, option: soDelayed, room: 4, want: kernels, length: 4},
		{name: "an option of the host socket", level: unix.SOL_TCP, option: 1, room: 4, want: kernels, length: 4},
		{name: "not delayed", level: Level, option: soDelayed, room: 4, want: succeed(), wrote: ints(0), length: 4},
		{name: "delayed, whatever length", state: delayed, level: Level, option: soDelayed, room: 1, want: succeed(), wrote: ints(1), length: 4},
		{name: "the host's name", state: State{NameTransparent: true}, level: Level, option: nameTransparent, room: 4, want: succeed(), wrote: ints(1), length: 4},
		{name: "no room at all", level: Level, option: soDelayed, room: 4, noValue: true, want: fail(unix.EFAULT), length: 4},
		{name: "no length", level: Level, option: soDelayed, noLength: true, want: fail(unix.EFAULT), wrote: ints(0)},
		{name: "no option", level: Level, option: soTransparent, room: 4, want: fail(unix.ENOPROTOOPT), length: 4},

		{name: "no results", level: Level, option: soDelayedResult, room: 12, want: succeed(), length: 0},
		{name: "results", options: []Option{done(1), waits, done(2)}, level: Level, option: soDelayedResult, room: 24, want: succeed(), wrote: ints(6, 1, -1, 6, 2, -2), length: 24, wantLeft: []Option{waits}},
		{name: "more than there is room for", options: []Option{done(1), done(2)}, level: Level, option: soDelayedResult, room: 23, want: fail(unix.ENOBUFS), wrote: ints(6, 1, -1), length: 12, wantLeft: []Option{done(2)}},
		{name: "a negative room", options: []Option{done(1)}, level: Level, option: soDelayedResult, room: -1, want: fail(unix.ENOBUFS), length: 0, wantLeft: []Option{done(1)}},
		{name: "results that cannot be given stay", options: []Option{done(1)}, level: Level, option: soDelayedResult, room: 12, noValue: true, want: fail(unix.EFAULT), length: 12, wantLeft: []Option{done(1)}},
		{name: "a room that cannot be read", options: []Option{done(1)}, level: Level, option: soDelayedResult, noLength: true, want: fail(unix.EFAULT), wantLeft: []Option{done(1)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &fakeCaller{t: t, state: tt.state, options: tt.options, memory: map[uint64][]byte{}}
			if !tt.noValue {
				c.memory[valueAt] = make([]byte, 64)
			}
			if !tt.noLength {
				c.memory[sizeAt] = ints(tt.room)
			}
			number := grafted
			if tt.number != 0 {
				number = tt.number
			}
			got, err := GetOption(c, number, tt.level, tt.option, valueAt, sizeAt)
			if got != tt.want || err != nil {
				t.Errorf("%+v, %v; want %+v", got, err, tt.want)
			}
			checkWritten(t, c, tt.wrote, tt.length, tt.noLength)
			if diff := cmp.Diff(tt.wantLeft, c.options); diff != "" && (len(tt.wantLeft) > 0 || len(c.options) > 0) {
				t.Errorf("queue (-want +got):\n%s", diff)
			}
		})
	}
}

// checkWritten compares the program's memory: what was written, and nothing behind it.
func checkWritten(t *testing.T, c *fakeCaller, wrote []byte, length int32, noLength bool) {
	t.Helper()
	if m := c.memory[valueAt]; m != nil && !bytes.Equal(m, append(bytes.Clone(wrote), make([]byte, 64-len(wrote))...)) {
		t.Errorf("wrote % x, want % x", m, wrote)
	}
	if !noLength && !bytes.Equal(c.memory[sizeAt], ints(length)) {
		t.Errorf("the length is % x, want %d", c.memory[sizeAt], length)
	}
}

// What getsockname(2) returns and writes.
func TestGetName(t *testing.T) {
	for _, tt := range []struct {
		name     string
		state    State
		number   int
		room     int32
		noValue  bool
		noLength bool

		want   Reply
		wrote  []byte
		length int32
	}{
		{name: "another descriptor", number: other, room: 18, want: kernels, length: 18},
		{name: "not bound", room: 18, want: succeed(), wrote: address(""), length: 18},
		{name: "bound", state: bound, room: 18, want: succeed(), wrote: address("web"), length: 18},
		{name: "less room", state: bound, room: 4, want: succeed(), wrote: address("web")[:4], length: 18},
		{name: "no room", state: bound, room: 0, noValue: true, want: succeed(), length: 18},
		{name: "a negative room", state: bound, room: -1, want: fail(unix.EINVAL), length: -1},
		{name: "the host's name", state: State{Name: "web", NameTransparent: true}, room: 18, want: kernels, length: 18},
		{name: "the host's name before bind", state: State{NameTransparent: true}, room: 18, want: succeed(), length: 0},
		{name: "an address that leads nowhere", state: bound, room: 18, noValue: true, want: fail(unix.EFAULT), length: 18},
		{name: "a length that leads nowhere", state: bound, noLength: true, want: fail(unix.EFAULT)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &fakeCaller{t: t, state: tt.state, memory: map[uint64][]byte{}}
			if !tt.noValue {
				c.memory[valueAt] = make([]byte, 64)
			}
			if !tt.noLength {
				c.memory[sizeAt] = ints(tt.room)
			}
			number := grafted
			if tt.number != 0 {
				number = tt.number
			}
			got, err := GetName(c, number, valueAt, sizeAt)
			if got != tt.want || err != nil {
				t.Errorf("%+v, %v; want %+v", got, err, tt.want)
			}
			checkWritten(t, c, tt.wrote, tt.length, tt.noLength)
		})
	}
}

// A fault of ours is no errno of the program's, and changes no queue.
func TestFaultsAreNoErrnos(t *testing.T) {
	ours := errors.New("a fault of ours")
	queue := []Option{{Level: 6, Name: 1}}
	for name, call := range map[string]func(*fakeCaller) (Reply, error){
		"look up": func(c *fakeCaller) (Reply, error) {
			c.fault = ours
			return GetName(c, grafted, valueAt, sizeAt)
		},
		"execute": func(c *fakeCaller) (Reply, error) {
			c.setErr = ours
			return SetOption(c, grafted, Level, soDelayedExecute, 0, 0)
		},
		"transparent": func(c *fakeCaller) (Reply, error) {
			c.setErr = ours
			return SetOption(c, grafted, Level, soTransparent, valueAt, transparentHead)
		},
	} {
		c := &fakeCaller{t: t, state: bound, options: slices.Clone(queue), memory: map[uint64][]byte{valueAt: transparentBytes(6, 1, 0), sizeAt: ints(18)}}
		if got, err := call(c); got != (Reply{}) || !errors.Is(err, ours) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if diff := cmp.Diff(queue, c.options); diff != "" {
			t.Errorf("%s: queue (-want +got):\n%s", name, diff)
		}
	}
}

// A result that another call has taken meanwhile is not taken for a later one of the same kind.
func TestForgetTakenResults(t *testing.T) {
	a, b := Option{Name: 1, Done: true}, Option{Name: 2, Done: true}
	for _, tt := range []struct{ has, taken, left []Option }{
		{[]Option{a, a, b}, []Option{a}, []Option{a, b}},
		{[]Option{b}, []Option{a}, []Option{b}},
		{[]Option{a, b}, []Option{a, b}, nil},
		{[]Option{a}, nil, []Option{a}},
	} {
		c := &fakeCaller{t: t, options: tt.has}
		s := Socket{File: file, Store: c}
		if err := s.forget(tt.taken); err != nil || len(tt.left) != len(c.options) || len(tt.left) > 0 && !cmp.Equal(tt.left, c.options) {
			t.Errorf("%v less %v: %v, %v", tt.has, tt.taken, c.options, err)
		}
	}
}

// The address of bind(2), of which the gate reads 28 bytes.
func TestParseBind(t *testing.T) {
	long := append(address("web"), make([]byte, 110)...)
	for _, tt := range []struct {
		name   string
		read   []byte
		length int
		want   string
		errno  unix.Errno
	}{
		{"a name", address("web"), 18, "web", 0},
		{"the longest name", address("0123456789abcdef"), 18, "0123456789abcdef", 0},
		{"no name", address(""), 18, "", 0},
		{"more behind it", long[:28], 128, "web", 0},
		{"too short", address("web"), 17, "", unix.EINVAL},
		{"too long", long[:28], 129, "", unix.EINVAL},
		{"negative", address("web"), -1, "", unix.EINVAL},
		{"not all is there", address("web")[:10], 18, "", unix.EFAULT},
		{"not all behind it is there", long[:20], 28, "", unix.EFAULT},
	} {
		if name, errno := ParseBind(tt.read, tt.length); name != tt.want || errno != tt.errno {
			t.Errorf("%s: %q, %v; want %q, %v", tt.name, name, errno, tt.want, tt.errno)
		}
	}
}
