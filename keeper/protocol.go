package keeper

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/wire"
)

// The Go side of keeper/c/protocol.h, which explains the messages.
const (
	protocolVersion = 3
	batchMax        = 64
	requestSize     = int(unsafe.Sizeof(requestMessage{}))
	replySize       = int(unsafe.Sizeof(replyMessage{}))
	loanSize        = int(unsafe.Sizeof(loanMessage{}))
)

// requestMessage is struct keeper_request.
type requestMessage struct {
	version  uint16
	op       opcode
	tag      uint32
	family   int32
	kind     int32 `c:"type"`
	protocol int32
	count    uint32
	number   int32
	events   uint32
	data     uint64
}

// replyMessage is struct keeper_reply.
type replyMessage struct {
	version uint16
	op      opcode
	tag     uint32
	status  status
	errno   uint32 `c:"error"`
	count   uint32
	zero    uint32
}

// loanMessage is struct keeper_loan.
type loanMessage struct {
	version uint32
	count   uint32
	numbers [batchMax]int32
}

type opcode uint16

const (
	opHello    opcode = 1
	opSockets  opcode = 2
	opEpollAdd opcode = 3
	opEpollDel opcode = 4
)

type status uint32

const (
	statusDone      status = 0 // done, or as much as the count says
	statusRefused   status = 1 // by the kernel: the errno is the program's
	statusFault     status = 2 // the keeper's own: the errno is not
	statusMalformed status = 3 // we broke the protocol
)

// errProtocol means that the two sides use different protocols. Then the keeper has to be ended.
var errProtocol = errors.New("keeper broke the protocol")

type request struct {
	op     opcode
	tag    uint32
	kind   Kind
	count  uint32
	number int32
	events uint32
	data   uint64
}

func (r *request) message() requestMessage {
	return requestMessage{
		version:  protocolVersion,
		op:       r.op,
		tag:      r.tag,
		family:   int32(r.kind.Family),
		kind:     int32(r.kind.Type),
		protocol: int32(r.kind.Protocol),
		count:    r.count,
		number:   r.number,
		events:   r.events,
		data:     r.data,
	}
}

type reply struct {
	op     opcode
	tag    uint32
	status status
	errno  unix.Errno
	count  int // descriptors sent before
}

// parseReply checks a message of the keeper. A reply that it accepts is consistent in itself. The
// caller checks whether it answers a request.
func parseReply(b []byte) (reply, error) {
	m, whole := wire.Read[replyMessage](b)
	if !whole {
		return reply{}, fmt.Errorf("%w: message of %d bytes", errProtocol, len(b))
	}
	switch {
	case m.version != protocolVersion:
		return reply{}, fmt.Errorf("%w: version %d, not %d", errProtocol, m.version, protocolVersion)
	case m.status == statusMalformed:
		return reply{}, fmt.Errorf("%w: it calls request %d malformed", errProtocol, m.tag)
	case m.status > statusMalformed, m.zero != 0,
		(m.status == statusDone) != (m.errno == 0), m.errno > 4095, // MAX_ERRNO
		m.op < opHello || m.op > opEpollDel,
		m.op == opHello && (m.tag != 0 || m.status != statusDone),
		m.op != opSockets && m.count != 0, m.count > batchMax,
		m.op == opSockets && m.status == statusDone && m.count == 0:
		return reply{}, fmt.Errorf("%w: message % x", errProtocol, b)
	}
	return reply{op: m.op, tag: m.tag, status: m.status, errno: unix.Errno(m.errno), count: int(m.count)}, nil
}

// parseLoan reads the numbers of sockets that the keeper lends.
func parseLoan(b []byte) ([]int, error) {
	m, whole := wire.Read[loanMessage](b)
	if !whole || m.version != protocolVersion || m.count == 0 || m.count > batchMax {
		return nil, fmt.Errorf("%w: loan of %d bytes", errProtocol, len(b))
	}
	var numbers []int
	for _, number := range m.numbers[:m.count] {
		numbers = append(numbers, int(number))
	}
	return numbers, nil
}

// rightsSize is the control data of a full batch.
var rightsSize = unix.CmsgSpace(batchMax * int(unsafe.Sizeof(int32(0))))
