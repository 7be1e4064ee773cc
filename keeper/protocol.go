package keeper

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The Go side of keeper/c/protocol.h, which explains the messages.
const (
	protocolVersion = 3
	batchMax        = 64
	requestSize     = 40
	replySize       = 24
	loanSize        = 8 + 4*batchMax
)

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

// errProtocol means that the two sides do not understand each other. Nothing
// but ending the keeper helps then.
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

func (r *request) encode(b *[requestSize]byte) {
	e := binary.NativeEndian
	e.PutUint16(b[0:], protocolVersion)
	e.PutUint16(b[2:], uint16(r.op))
	e.PutUint32(b[4:], r.tag)
	e.PutUint32(b[8:], uint32(r.kind.Family))
	e.PutUint32(b[12:], uint32(r.kind.Type))
	e.PutUint32(b[16:], uint32(r.kind.Protocol))
	e.PutUint32(b[20:], r.count)
	e.PutUint32(b[24:], uint32(r.number))
	e.PutUint32(b[28:], r.events)
	e.PutUint64(b[32:], r.data)
}

type reply struct {
	op     opcode
	tag    uint32
	status status
	errno  unix.Errno
	count  int // descriptors sent before
}

// parseReply checks a message of the keeper. A reply it accepts is consistent
// in itself; whether it answers anything is for the caller to see.
func parseReply(b []byte) (reply, error) {
	if len(b) != replySize {
		return reply{}, fmt.Errorf("%w: message of %d bytes", errProtocol, len(b))
	}
	e := binary.NativeEndian
	r := reply{
		op:     opcode(e.Uint16(b[2:])),
		tag:    e.Uint32(b[4:]),
		status: status(e.Uint32(b[8:])),
		errno:  unix.Errno(e.Uint32(b[12:])),
	}
	count := e.Uint32(b[16:])
	switch {
	case e.Uint16(b) != protocolVersion:
		return reply{}, fmt.Errorf("%w: version %d, not %d", errProtocol, e.Uint16(b), protocolVersion)
	case r.status == statusMalformed:
		return reply{}, fmt.Errorf("%w: it calls request %d malformed", errProtocol, r.tag)
	case r.status > statusMalformed, e.Uint32(b[20:]) != 0,
		(r.status == statusDone) != (r.errno == 0), r.errno > 4095, // MAX_ERRNO
		r.op < opHello || r.op > opEpollDel,
		r.op == opHello && (r.tag != 0 || r.status != statusDone),
		r.op != opSockets && count != 0, count > batchMax,
		r.op == opSockets && r.status == statusDone && count == 0:
		return reply{}, fmt.Errorf("%w: message % x", errProtocol, b)
	}
	r.count = int(count)
	return r, nil
}

// parseLoan reads the numbers of sockets that the keeper lends.
func parseLoan(b []byte) ([]int, error) {
	e := binary.NativeEndian
	if len(b) != loanSize || e.Uint32(b) != protocolVersion || e.Uint32(b[4:]) == 0 || e.Uint32(b[4:]) > batchMax {
		return nil, fmt.Errorf("%w: loan of %d bytes", errProtocol, len(b))
	}
	var numbers []int
	for at := 8; at < 8+4*int(e.Uint32(b[4:])); at += 4 {
		numbers = append(numbers, int(int32(e.Uint32(b[at:]))))
	}
	return numbers, nil
}

// takeFiles appends to fds every descriptor in control data, so that none is
// lost whatever else is wrong with the message.
func takeFiles(oob []byte, fds []int) []int {
	for len(oob) >= unix.SizeofCmsghdr {
		h, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			break
		}
		if h.Level == unix.SOL_SOCKET && h.Type == unix.SCM_RIGHTS {
			for ; len(data) >= 4; data = data[4:] {
				fds = append(fds, int(int32(binary.NativeEndian.Uint32(data))))
			}
		}
		oob = rest
	}
	return fds
}

// rightsSize is the control data of a full batch.
var rightsSize = unix.CmsgSpace(batchMax * int(unsafe.Sizeof(int32(0))))
