package gate

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Call is what a program called.
type Call uint32

// The calls, enum gate_call of gate/c/gate.h.
const (
	hello Call = iota
	Socket
	Connect
	Bind
	Listen
	Send
	SetOption
	GetOption
	GetName
	Ioctl // about the interfaces of a socket's namespace
	Other // of Stats only: calls that the gate has no part in
	calls
)

// Messages that are no calls.
const (
	done Call = calls + iota
	stats
	bye
	taken
	refused
)

func (c Call) String() string {
	if int(c) < len(callNames) {
		return callNames[c]
	}
	return "call " + strconv.Itoa(int(c))
}

var callNames = []string{
	"hello", "socket", "connect", "bind", "listen", "send", "setsockopt", "getsockopt", "getsockname", "ioctl", "other",
}

// Ask is a call of a program that waits for an answer, or one that the gate has
// answered itself.
type Ask struct {
	Call     Call
	ID       uint64 // of the notification
	Thread   int    // the caller, as long as the notification is valid
	Number   int    // the descriptor; of Socket the address family
	Backlog  int    // of Listen
	Answered bool
	Again    bool      // a supervisor that is gone may have begun to answer
	Narrow   bool      // the caller's ABI has words of 32 bits
	Address  []byte    // the sockaddr's beginning, as the program had it; may be cut short
	Args     [6]uint64 // of the call, as the program passed them
}

// The layouts of struct gate_ask, gate_order and gate_stats.
const (
	version    = 5
	askSize    = 112
	offAddress = 36
	offArgs    = 64
	addressMax = offArgs - offAddress

	orderSize = 24
	statsHead = 16
	callWords = 3 + TimeBuckets
	statsSize = statsHead + 8*(int(calls)*callWords+7)

	messageMax = statsSize
)

// op is what a supervisor orders, enum gate_order_op.
type op uint32

const (
	opSet op = iota + 1
	opRules
	opStats
	opEnd
)

// Word is one of the board's that a supervisor sets, enum gate_word.
type Word uint32

// The words. Each says that something is so, and stays so.
const (
	OwnSockets   Word = iota // some sockets of the container are in its own namespace
	Services                 // the container serves ports on the host
	GraftSockets             // the container has AF_GRAFT sockets
	BoundClients             // a client's socket that is bound may need another source
	traced                   // calls that the gate answers itself are told of; until the supervisor ends
	words
)

func parse(b []byte) (Ask, error) {
	e := binary.NativeEndian
	if len(b) != askSize || e.Uint32(b) != version {
		return Ask{}, fmt.Errorf("%w: message of %d bytes", ErrProtocol, len(b))
	}
	length := e.Uint32(b[32:])
	if length > addressMax {
		return Ask{}, fmt.Errorf("%w: address of %d bytes", ErrProtocol, length)
	}
	a := Ask{
		Call:     Call(e.Uint32(b[4:])),
		ID:       e.Uint64(b[8:]),
		Thread:   int(e.Uint32(b[16:])),
		Number:   int(int32(e.Uint32(b[20:]))),
		Backlog:  int(int32(e.Uint32(b[24:]))),
		Answered: b[28] != 0,
		Again:    b[29] != 0,
		Narrow:   b[30] != 0,
		Address:  bytes.Clone(b[offAddress : offAddress+length]),
	}
	for i := range a.Args {
		a.Args[i] = e.Uint64(b[offArgs+8*i:])
	}
	return a, nil
}

func encodeOrder(o op, tag uint64, word, value uint32) []byte {
	e := binary.NativeEndian
	b := e.AppendUint32(nil, version)
	b = e.AppendUint32(b, uint32(o))
	b = e.AppendUint64(b, tag)
	b = e.AppendUint32(b, word)
	return e.AppendUint32(b, value)
}

// encodeAdmission is struct gate_admission.
func encodeAdmission(c Config) []byte {
	e := binary.NativeEndian
	var born, datagrams uint32
	for bit, is := range []bool{c.Born4, c.Born6} {
		if is {
			born |= 1 << bit
		}
	}
	if c.Datagrams {
		datagrams = 1
	}
	b := e.AppendUint32(nil, version)
	b = e.AppendUint32(b, uint32(c.UID))
	b = e.AppendUint32(b, uint32(c.GID))
	b = e.AppendUint32(b, born)
	b = e.AppendUint64(b, c.Own.Inode())
	b = e.AppendUint64(b, c.Own.Cookie())
	b = e.AppendUint32(b, datagrams)
	return e.AppendUint32(b, 0)
}

// TimeBuckets is how many classes of times there are, see CallStats.Time.
const TimeBuckets = 32

// CallStats counts the notifications of one call.
type CallStats struct {
	Answered uint64 // by the gate itself, Refused included
	Passed   uint64 // on to the supervisor
	Refused  uint64 // by the gate, with an errno of its own
	// Time has, for those that the gate answered, how long that took from when
	// it picked the notification up: of bucket i less than TimeBelow(i), and not
	// less than the one before.
	Time [TimeBuckets]uint64
}

// TimeBelow is the upper bound of a bucket; the last has none.
func TimeBelow(bucket int) time.Duration { return 1 << bucket }

// Stats are what a gate has counted since its start.
type Stats struct {
	Calls        [calls]CallStats // by Call
	Batches      uint64           // of sockets that shims have ordered and got
	BatchSockets uint64           // in these
	Born         uint64           // sockets that were made one at a time
	BornAsked    uint64           // of these, those of which a shim had none left
	Again        uint64           // calls that were put to another supervisor again
	Full         uint64           // calls that had to wait to be put to a supervisor
	Unreported   uint64           // calls that a traced gate could not tell of
}

// Add adds what another gate, or the same at another time, has counted.
func (s *Stats) Add(o *Stats) {
	for i := range s.Calls {
		s.Calls[i].add(&o.Calls[i])
	}
	s.Batches += o.Batches
	s.BatchSockets += o.BatchSockets
	s.Born += o.Born
	s.BornAsked += o.BornAsked
	s.Again += o.Again
	s.Full += o.Full
	s.Unreported += o.Unreported
}

func (c *CallStats) add(o *CallStats) {
	c.Answered += o.Answered
	c.Passed += o.Passed
	c.Refused += o.Refused
	for i := range c.Time {
		c.Time[i] += o.Time[i]
	}
}

// Bucket is the one that a time belongs to, see CallStats.Time.
func Bucket(d time.Duration) int { return min(bits.Len64(uint64(max(d, 0))), TimeBuckets-1) }

// answer is a message that says what has become of an order.
type answer struct {
	tag   uint64
	err   error
	stats *Stats
}

// parseAnswer reads one if it is one.
func parseAnswer(b []byte) (answer, bool, error) {
	e := binary.NativeEndian
	if len(b) < statsHead || e.Uint32(b) != version {
		return answer{}, false, nil
	}
	a := answer{tag: e.Uint64(b[8:])}
	switch Call(e.Uint32(b[4:])) {
	case done:
		m, err := parse(b)
		if err == nil && m.Number != 0 {
			a.err = unix.Errno(m.Number)
		}
		return a, true, err
	case stats:
		if len(b) != statsSize {
			return answer{}, false, fmt.Errorf("%w: statistics of %d bytes", ErrProtocol, len(b))
		}
		a.stats = parseStats(b[statsHead:])
		return a, true, nil
	}
	return answer{}, false, nil
}

func parseStats(b []byte) *Stats {
	s := new(Stats)
	next := func() (n uint64) {
		n, b = binary.NativeEndian.Uint64(b), b[8:]
		return n
	}
	for i := range s.Calls {
		c := &s.Calls[i]
		c.Answered, c.Passed, c.Refused = next(), next(), next()
		for i := range c.Time {
			c.Time[i] = next()
		}
	}
	for _, n := range []*uint64{&s.Batches, &s.BatchSockets, &s.Born, &s.BornAsked, &s.Again, &s.Full, &s.Unreported} {
		*n = next()
	}
	return s
}
