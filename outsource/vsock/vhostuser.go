package vsock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/fdpass"
)

// The VMM speaks vhost-user (QEMU's docs/interop/vhost-user.rst), as the front end. Messages are
// handled by the thread that uses the rings, so a ring is never in use while one changes it.
//
// User-Mode Linux (arch/um/drivers/virtio_uml.c) needs SLAVE_REQ, sends a SET_MEM_TABLE with two
// regions of which it uses one, gives pipes to be interrupted by, and uses all three rings.

// Requests.
const (
	getFeatures         = 1
	setFeatures         = 2
	setOwner            = 3
	resetOwner          = 4
	setMemTable         = 5
	setVringNum         = 8
	setVringAddr        = 9
	setVringBase        = 10
	getVringBase        = 11
	setVringKick        = 12
	setVringCall        = 13
	setVringErr         = 14
	getProtocolFeatures = 15
	setProtocolFeatures = 16
	getQueueNum         = 17
	setVringEnable      = 18
	setSlaveReqFD       = 21
	getConfig           = 24
)

const (
	messageHeader  = 12
	payloadMax     = 4096
	messageVersion = 1
	flagReply      = 4
	flagNeedReply  = 8

	featureSeqPacket = 1 << 1
	featureProtocol  = 1 << 30 // VHOST_USER_F_PROTOCOL_FEATURES
	featureVersion1  = 1 << 32
	offered          = featureSeqPacket | featureProtocol | featureVersion1

	protocolReplyAck = 1 << 3
	protocolSlaveReq = 1 << 5
	protocolConfig   = 1 << 9
	protocolOffered  = protocolReplyAck | protocolSlaveReq | protocolConfig

	// noFile says that SET_VRING_KICK and its like bring no file.
	noFile = 1 << 8
)

// request is a message of the VMM's.
type request struct {
	number, flags uint32
	payload       []byte
	files         []int // those that are taken are set to -1
}

func (r *request) word(i int) uint32   { return binary.LittleEndian.Uint32(r.payload[4*i:]) }
func (r *request) double(i int) uint64 { return binary.LittleEndian.Uint64(r.payload[8*i:]) }

// take takes the next file; -1 if there is none.
func (r *request) take() int {
	for i, file := range r.files {
		if file >= 0 {
			r.files[i] = -1
			return file
		}
	}
	return -1
}

// message handles one message. At the VMM's end the device ends, without an error.
func (d *Device) message() error {
	r, err := d.read()
	defer func() {
		for _, file := range r.files {
			if file >= 0 {
				unix.Close(file)
			}
		}
	}()
	if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
		d.ending = true
		return nil
	}
	if err != nil {
		return fmt.Errorf("read from the VMM: %w", err)
	}
	if want := payloadSizes[r.number]; len(r.payload) < want {
		return fmt.Errorf("%w: message %d of %d bytes", ErrGuest, r.number, len(r.payload))
	}
	reply, err := d.handle(r)
	if err != nil {
		return fmt.Errorf("message %d of the VMM: %w", r.number, err)
	}
	d.keep() // before the VMM goes on
	if reply == nil && r.flags&flagNeedReply != 0 {
		reply = make([]byte, 8)
	}
	if reply == nil {
		return nil
	}
	b := binary.LittleEndian.AppendUint32(nil, r.number)
	b = binary.LittleEndian.AppendUint32(b, messageVersion|flagReply)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(reply)))
	if _, err := unix.SendmsgN(d.vmmFile, append(b, reply...), nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL); err != nil {
		return fmt.Errorf("answer the VMM: %w", err)
	}
	return nil
}

// read reads one message. It waits for the rest of one that has begun: a VMM delays its own guest
// alone.
func (d *Device) read() (*request, error) {
	head := make([]byte, messageHeader)
	control := make([]byte, unix.CmsgSpace(4*regionsMax))
	n, cn, _, _, err := unix.Recvmsg(d.vmmFile, head, control, unix.MSG_WAITALL|unix.MSG_CMSG_CLOEXEC)
	r := &request{files: fdpass.Descriptors(control[:cn], nil)}
	switch {
	case err != nil:
		return r, err
	case n == 0:
		return r, io.EOF
	case n < messageHeader:
		return r, fmt.Errorf("%w: a message is cut", ErrGuest)
	}
	r.number, r.flags = binary.LittleEndian.Uint32(head), binary.LittleEndian.Uint32(head[4:])
	size := binary.LittleEndian.Uint32(head[8:])
	if r.flags&3 != messageVersion || size > payloadMax {
		return r, fmt.Errorf("%w: flags %#x, %d bytes", ErrGuest, r.flags, size)
	}
	r.payload = make([]byte, size)
	if size > 0 {
		if n, _, _, _, err = unix.Recvmsg(d.vmmFile, r.payload, nil, unix.MSG_WAITALL); err == nil && n < int(size) {
			err = io.ErrUnexpectedEOF
		}
	}
	return r, err
}

// payloadSizes are the least sizes of messages.
var payloadSizes = map[uint32]int{
	setFeatures: 8, setMemTable: 8, setVringNum: 8, setVringAddr: 40, setVringBase: 8, getVringBase: 8,
	setVringKick: 8, setVringCall: 8, setVringErr: 8, setProtocolFeatures: 8, setVringEnable: 8, getConfig: 12,
}

// handle makes what a message says. It returns the payload of a reply, or nil.
func (d *Device) handle(r *request) ([]byte, error) {
	le := binary.LittleEndian
	switch r.number {
	case getFeatures:
		return le.AppendUint64(nil, offered), nil
	case getProtocolFeatures:
		return le.AppendUint64(nil, protocolOffered), nil
	case getQueueNum:
		return le.AppendUint64(nil, queueCount), nil
	case setFeatures:
		d.features = r.double(0)
		if d.features&^offered != 0 || d.features&featureVersion1 == 0 {
			return nil, fmt.Errorf("%w: features %#x", ErrGuest, d.features)
		}
	case getConfig:
		return d.config(r)
	case setMemTable:
		return nil, d.setMemory(r)
	case setSlaveReqFD:
		d.closeFile(&d.replier)
		d.replier = r.take()
	case setVringNum, setVringAddr, setVringBase, getVringBase, setVringKick, setVringCall, setVringErr, setVringEnable:
		return d.ring(r)
	case setOwner, setProtocolFeatures:
	case resetOwner:
		d.stop()
		d.known.clear()
	default:
		return nil, ErrGuest
	}
	return nil, nil
}

// config answers GET_CONFIG: struct virtio_vsock_config has the guest's context id.
func (d *Device) config(r *request) ([]byte, error) {
	off, size := r.word(0), r.word(1)
	if off > 8 || size > 8-off || int(size) > len(r.payload)-12 {
		return nil, fmt.Errorf("%w: configuration of %d bytes at %d", ErrGuest, size, off)
	}
	cid := binary.LittleEndian.AppendUint64(nil, d.cid)
	return append(slices.Clone(r.payload[:12]), cid[off:off+size]...), nil
}

func (d *Device) setMemory(r *request) error {
	const entry = 32
	count := int(r.word(0))
	if count > regionsMax || count > len(r.files) || len(r.payload) < 8+entry*count {
		return fmt.Errorf("%w: %d regions of memory", ErrGuest, count)
	}
	var m memory
	for i := range count {
		e := request{payload: r.payload[8+entry*i:]}
		g, err := mapRegion(r.files[i], e.double(0), e.double(1), e.double(2), e.double(3))
		if err != nil {
			m.unmap()
			return err
		}
		r.files[i] = -1
		m = append(m, g)
	}
	d.memory.unmap()
	d.memory = m
	for i := range d.queues {
		if q := &d.queues[i]; q.used != nil {
			if err := q.place(m); err != nil {
				return err
			}
		}
	}
	return nil
}

// ring handles a message about one ring.
func (d *Device) ring(r *request) ([]byte, error) {
	index := r.word(0)
	fileless := false
	if r.number == setVringKick || r.number == setVringCall || r.number == setVringErr {
		fileless = index&noFile != 0
		index &= noFile - 1
	}
	if index >= queueCount {
		return nil, fmt.Errorf("%w: ring %d", ErrGuest, index)
	}
	q := &d.queues[index]
	switch r.number {
	case setVringNum:
		q.num, q.used = r.word(1), nil
	case setVringAddr:
		q.descAt, q.usedAt, q.availAt = r.double(1), r.double(2), r.double(3)
		return nil, q.place(d.memory)
	case setVringBase:
		q.taken = uint16(r.word(1))
		d.resumed = d.resumed || q.taken != 0 && index != eventQueue
	case getVringBase:
		base := uint32(q.taken)
		d.stopRing(q)
		d.dropAll()
		d.known.clear()
		return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, index), base), nil
	case setVringEnable:
		q.enabled = r.word(1) != 0
	case setVringKick:
		return nil, d.setFile(&q.kick, r, fileless, true)
	case setVringCall:
		return nil, d.setFile(&q.call, r, fileless, false)
	}
	if d.features&featureProtocol == 0 { // then nobody enables rings
		q.enabled = true
	}
	return nil, nil
}

// setFile takes a ring's file. Neither reads nor writes of it wait.
func (d *Device) setFile(to *int, r *request, fileless, watched bool) error {
	d.closeFile(to)
	if fileless {
		return nil
	}
	file := r.take()
	if file < 0 {
		return fmt.Errorf("%w: a file is missing", ErrGuest)
	}
	*to = file
	if err := unix.SetNonblock(file, true); err != nil || !watched {
		return err
	}
	return d.watch(file, unix.EPOLLIN)
}

// closeFile closes a file of the VMM's. The VMM has it too, so epoll would keep it.
func (d *Device) closeFile(file *int) {
	if *file >= 0 {
		d.unwatch(*file)
		unix.Close(*file)
	}
	*file = -1
}

// stopRing lets go of a ring's files.
func (d *Device) stopRing(q *queue) {
	d.closeFile(&q.kick)
	d.closeFile(&q.call)
	q.enabled = false
}

// stop ends all rings and connections.
func (d *Device) stop() {
	for i := range d.queues {
		d.stopRing(&d.queues[i])
	}
	d.dropAll()
}

// Probe asks a device for its features, as a VMM does first.
func Probe(file int) error {
	b := binary.LittleEndian.AppendUint32(nil, getFeatures)
	b = binary.LittleEndian.AppendUint32(b, messageVersion)
	b = binary.LittleEndian.AppendUint32(b, 0)
	if _, err := unix.Write(file, b); err != nil {
		return fmt.Errorf("ask a device: %w", err)
	}
	reply := make([]byte, messageHeader+8)
	n, _, err := unix.Recvfrom(file, reply, unix.MSG_WAITALL)
	switch {
	case err != nil:
		return fmt.Errorf("ask a device: %w", err)
	case n < len(reply) || binary.LittleEndian.Uint64(reply[messageHeader:]) != offered:
		return fmt.Errorf("a device answers % x", reply[:n])
	}
	return nil
}
