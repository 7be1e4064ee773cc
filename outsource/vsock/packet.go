package vsock

import "encoding/binary"

// HostCID is the host's context id.
const HostCID = 2

// Operations of packets (virtio 1.2 section 5.10.6).
const (
	opRequest       = 1
	opResponse      = 2
	opReset         = 3
	opShutdown      = 4
	opData          = 5
	opCreditUpdate  = 6
	opCreditRequest = 7
)

// Flags of opShutdown, and of the last opData of a message.
const (
	noReceive = 1
	noSend    = 2
	endMsg    = 1
)

const headerSize = 44

// header is struct virtio_vsock_hdr.
type header struct {
	from, to         uint64 // contexts
	fromPort, toPort uint32
	length           uint32
	typ, op          uint16
	flags            uint32
	alloc, forwarded uint32
}

func parseHeader(b *[headerSize]byte) header {
	le := binary.LittleEndian
	return header{
		from: le.Uint64(b[0:]), to: le.Uint64(b[8:]), fromPort: le.Uint32(b[16:]), toPort: le.Uint32(b[20:]),
		length: le.Uint32(b[24:]), typ: le.Uint16(b[28:]), op: le.Uint16(b[30:]), flags: le.Uint32(b[32:]),
		alloc: le.Uint32(b[36:]), forwarded: le.Uint32(b[40:]),
	}
}

func (h *header) bytes() (b [headerSize]byte) {
	le := binary.LittleEndian
	le.PutUint64(b[0:], h.from)
	le.PutUint64(b[8:], h.to)
	le.PutUint32(b[16:], h.fromPort)
	le.PutUint32(b[20:], h.toPort)
	le.PutUint32(b[24:], h.length)
	le.PutUint16(b[28:], h.typ)
	le.PutUint16(b[30:], h.op)
	le.PutUint32(b[32:], h.flags)
	le.PutUint32(b[36:], h.alloc)
	le.PutUint32(b[40:], h.forwarded)
	return b
}
