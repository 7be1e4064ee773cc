package gate

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/wire"
)

// Call is a system call of a program.
type Call uint32

// The calls, enum gate_call of gate/c/protocol.h.
const (
	hello Call = iota
	Socket
	Connect
	Bind
	Listen
	Send
	SetOption
	GetOption
	GetName // of a socket, or of its peer, see Request.Name
	Ioctl   // asks about the interfaces of a socket's namespace
	Other   // of Stats only: calls that do not concern the gate
	calls
)

// Name says whose name a call asks for, enum gate_name.
type Name uint8

// The names.
const (
	OwnName    Name = iota
	PeerName        // getpeername(2)
	AcceptName      // accept(2), accept4(2)
	// AcceptedName: the same calls, where the gate has accepted a connection from Address, and waits for
	// GiveName. Or, if Number is not negative, the program has the connection as that descriptor.
	AcceptedName
	// WaitName: the same calls, which the gate answers. The supervisor looks for signals meanwhile.
	WaitName
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

// Request is a call of a program that waits for an answer, or a call that the gate has answered
// itself.
type Request struct {
	Call     Call
	ID       uint64 // of the notification
	Thread   int    // the caller, as long as the notification is valid
	Number   int    // the descriptor; of Socket the address family
	Backlog  int    // of Listen
	Answered bool
	Again    bool // a former supervisor may have begun to answer
	Narrow   bool // the caller's ABI has words of 32 bits
	Name     Name // of GetName
	// WantsMemory asks for GiveMemory.
	WantsMemory bool
	Waits       bool      // accept(2) has waited for a connection, or would
	Address     []byte    // the sockaddr's beginning, as the program had it; may be cut short
	Args        [6]uint64 // of the call, as the program passed them
}

// version is GATE_VERSION of gate/c/protocol.h.
const version = 6

// messageHead is the beginning of each message of a gate.
type messageHead struct {
	version uint32
	call    Call
}

const headSize = int(unsafe.Sizeof(messageHead{}))

// requestMessage is struct gate_request.
type requestMessage struct {
	version     uint32
	call        Call
	id          uint64
	thread      uint32
	number      int32
	backlog     int32
	answered    uint8
	again       uint8
	narrow      uint8
	name        Name
	length      uint16
	wantsMemory uint8
	waits       uint8
	address     [addressMax]byte
	args        [6]uint64
}

// orderMessage is struct gate_order.
type orderMessage struct {
	version uint32
	op      op
	tag     uint64
	word    uint32
	value   uint32
}

// statsMessage is struct gate_stats.
type statsMessage struct {
	_        messageHead
	tag      uint64
	counters Stats
}

// admissionMessage is struct gate_admission.
type admissionMessage struct {
	version   uint32
	uid       uint32
	gid       uint32
	hostFirst uint32
	own       uint64
	cookie    uint64
	datagrams uint32
	untrapped uint32

	virtualPool uint32
	_           uint32
}

// The families of which sockets are made on the host, bits of policy/c/board.h.
const (
	hostFirst4 = 1 << iota
	hostFirst6
)

// The calls about which the kernel programs decide, bits of policy/c/board.h.
const (
	untrappedDestinations = 1 << iota
	untrappedPort0
	translated
	relayed
)

// addressMax is the number of bytes of a sockaddr that the gate reads.
const addressMax = 28

// messageMax is the longest message of a gate.
const messageMax = int(unsafe.Sizeof(statsMessage{}))

// op is the kind of an order, enum gate_order_op.
type op uint32

const (
	opSet op = iota + 1
	opRules
	opStats
	opEnd
	opMemory
	opName
)

// Word is a word of the board that a supervisor sets, enum gate_word.
type Word uint32

// The words. Each states a fact that stays true once it is true.
const (
	OwnSockets     Word = iota // some sockets of the container are in its own namespace
	Services                   // the container serves ports on the host
	AFGraftSockets             // the container has AF_GRAFT sockets
	BoundClients               // a client's socket that is bound may need another source
	Expects                    // a listener may get a connection that is exchanged (graft/expect.go)
	traced                     // the gate reports calls that it answers itself; until the supervisor ends
	served                     // BOARD_SERVED of the ports of Services; a supervisor adds to it
	namesPeers                 // the supervisor calls GiveName; until it ends
	words
)

func parse(b []byte) (Request, error) {
	m, whole := wire.Read[requestMessage](b)
	if !whole || m.version != version {
		return Request{}, fmt.Errorf("%w: message of %d bytes", ErrProtocol, len(b))
	}
	if m.length > addressMax {
		return Request{}, fmt.Errorf("%w: address of %d bytes", ErrProtocol, m.length)
	}
	return Request{
		Call:     m.call,
		ID:       m.id,
		Thread:   int(m.thread),
		Number:   int(m.number),
		Backlog:  int(m.backlog),
		Answered: m.answered != 0,
		Again:    m.again != 0,
		Narrow:   m.narrow != 0,
		Name:     m.name,

		WantsMemory: m.wantsMemory != 0,
		Waits:       m.waits != 0,

		Address: bytes.Clone(m.address[:m.length]),
		Args:    m.args,
	}, nil
}

func encodeOrder(o op, tag uint64, word, value uint32) []byte {
	return wire.Append(nil, orderMessage{version: version, op: o, tag: tag, word: word, value: value})
}

func encodeAdmission(c Config) []byte {
	m := admissionMessage{
		version: version,
		uid:     uint32(c.UID),
		gid:     uint32(c.GID),
		own:     c.Own.Inode(),
		cookie:  c.Own.Cookie(),
	}
	if c.HostFirst4 {
		m.hostFirst |= hostFirst4
	}
	if c.HostFirst6 {
		m.hostFirst |= hostFirst6
	}
	if c.Datagrams {
		m.datagrams = 1
	}
	if c.Untrapped {
		m.untrapped |= untrappedDestinations
	}
	if c.UntrappedPort0 {
		m.untrapped |= untrappedPort0
	}
	if c.Translated.IsValid() {
		m.untrapped |= translated
		m.virtualPool = firstOf(c.Translated)
	}
	if c.Relayed {
		m.untrapped |= relayed
	}
	return wire.Append(nil, m)
}

// firstOf returns the first address of a pool in host order.
func firstOf(pool netip.Prefix) uint32 {
	first := pool.Masked().Addr().As4()
	return binary.BigEndian.Uint32(first[:])
}

// TimeBuckets is the number of classes of times, see CallStats.Time.
const TimeBuckets = 32

// CallStats counts the notifications of one call. The layout is that of struct gate_call_stats.
type CallStats struct {
	Answered uint64 // by the gate itself, including Refused
	Passed   uint64 // on to the supervisor
	Refused  uint64 // by the gate, with an errno of its own
	// Time counts the calls that the gate answered, by the time from the receipt of the
	// notification to the answer. Times of bucket i are less than TimeBelow(i), and not less than
	// TimeBelow(i-1).
	Time [TimeBuckets]uint64
}

// TimeBelow returns the upper bound of a bucket; the last bucket has none.
func TimeBelow(bucket int) time.Duration { return 1 << bucket }

// Stats are the counters of a gate since its start. The layout is that of struct gate_counters.
type Stats struct {
	Calls        [calls]CallStats // by Call
	Batches      uint64           // of sockets that shims have ordered and received
	BatchSockets uint64           // in these
	Single       uint64           // sockets that were made one at a time
	Misses       uint64           // of these, sockets of which a shim had none left
	Again        uint64           // calls that were sent again to another supervisor
	Full         uint64           // calls that had to wait to be sent to a supervisor
	Unreported   uint64           // calls that a traced gate could not report
}

// Add adds the counters of another gate, or of the same gate at another time.
func (s *Stats) Add(o *Stats) {
	for i := range s.Calls {
		s.Calls[i].add(&o.Calls[i])
	}
	s.Batches += o.Batches
	s.BatchSockets += o.BatchSockets
	s.Single += o.Single
	s.Misses += o.Misses
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

// Bucket returns the bucket of a time, see CallStats.Time.
func Bucket(d time.Duration) int { return min(bits.Len64(uint64(max(d, 0))), TimeBuckets-1) }

// answer is a message with the result of an order.
type answer struct {
	tag   uint64
	err   error
	stats *Stats
}

// parseAnswer reads a message, and tells whether it is an answer.
func parseAnswer(b []byte) (answer, bool, error) {
	head, whole := wire.Read[messageHead](b[:min(len(b), headSize)])
	if !whole || head.version != version {
		return answer{}, false, nil
	}
	switch head.call {
	case done:
		m, err := parse(b)
		a := answer{tag: m.ID}
		if m.Number != 0 {
			a.err = unix.Errno(m.Number)
		}
		return a, true, err
	case stats:
		m, whole := wire.Read[statsMessage](b)
		if !whole {
			return answer{}, false, fmt.Errorf("%w: statistics of %d bytes", ErrProtocol, len(b))
		}
		return answer{tag: m.tag, stats: &m.counters}, true, nil
	}
	return answer{}, false, nil
}
