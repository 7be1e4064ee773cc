package vsock

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A split virtqueue (virtio 1.2 section 2.7), without indirect descriptors, events by index, or
// packed rings: the device does not offer those.

// queueSizeMax is the largest ring that is taken.
const queueSizeMax = 1024

// Flags of descriptors, and of rings.
const (
	descNext     = 1
	descWrite    = 2
	descSize     = 16
	noNotify     = 1 // in the used ring
	noInterrupt  = 1 // in the available ring
	ringHeader   = 4
	usedElemSize = 8
)

// queue is one ring.
type queue struct {
	num               uint32
	descAt            uint64 // addresses in the VMM
	availAt, usedAt   uint64
	desc, avail, used []byte // nil: it is not set up
	taken             uint16 // chains that were taken from avail
	filled            uint16 // and those that were given to used
	told              uint16 // filled, when the driver was last told
	held              int    // descriptors of the chains that it was not told of
	quiet             bool   // the driver was told not to kick
	kick, call        int    // -1: none
	enabled           bool
}

// running tells whether the ring may be used.
func (q *queue) running() bool { return q.enabled && q.kick >= 0 && q.used != nil }

// place finds the ring in memory.
func (q *queue) place(m memory) error {
	q.desc, q.avail, q.used = nil, nil, nil
	if q.num == 0 || q.num > queueSizeMax || q.num&(q.num-1) != 0 {
		return fmt.Errorf("%w: a ring of %d", ErrGuest, q.num)
	}
	if q.descAt%8 != 0 || q.availAt%4 != 0 || q.usedAt%4 != 0 { // Linux aligns them so; atomics need it
		return fmt.Errorf("%w: a ring that is not aligned", ErrGuest)
	}
	n := uint64(q.num)
	desc, err := m.byUser(q.descAt, descSize*n)
	if err != nil {
		return err
	}
	avail, err := m.byUser(q.availAt, ringHeader+2*n)
	if err != nil {
		return err
	}
	used, err := m.byUser(q.usedAt, ringHeader+usedElemSize*n)
	if err != nil {
		return err
	}
	q.desc, q.avail, q.used = desc, avail, used
	q.filled = uint16(head(used).Load() >> 16)
	q.told, q.held, q.quiet = q.filled, 0, false
	return nil
}

// head is the first word of a ring: flags in the lower half, the index in the upper.
func head(ring []byte) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&ring[0])) }

// waiting returns the number of chains that were not taken.
func (q *queue) waiting() (int, error) {
	n := uint16(head(q.avail).Load()>>16) - q.taken
	if uint32(n) > q.num {
		return 0, fmt.Errorf("%w: %d chains in a ring of %d", ErrGuest, n, q.num)
	}
	return int(n), nil
}

// chain is a chain of descriptors: buffers of the guest.
type chain struct {
	head  uint16
	parts [][]byte
	size  int
	links int // descriptors
}

// peek reads the chain that is i behind the next one. All its buffers must be for the device to
// write, or none.
func (q *queue) peek(m memory, i int, write bool, c *chain) error {
	at := ringHeader + 2*(uint32(q.taken+uint16(i))&(q.num-1))
	c.head, c.parts, c.size, c.links = binary.LittleEndian.Uint16(q.avail[at:]), c.parts[:0], 0, 0
	next := c.head
	for range q.num {
		c.links++
		if uint32(next) >= q.num {
			return fmt.Errorf("%w: descriptor %d of %d", ErrGuest, next, q.num)
		}
		d := [descSize]byte(q.desc[descSize*uint32(next):]) // copied before it is checked
		addr, size := binary.LittleEndian.Uint64(d[:]), binary.LittleEndian.Uint32(d[8:])
		flags := binary.LittleEndian.Uint16(d[12:])
		if flags&^(descNext|descWrite) != 0 || (flags&descWrite != 0) != write {
			return fmt.Errorf("%w: flags %#x of a descriptor", ErrGuest, flags)
		}
		if c.size += int(size); c.size > chainMax {
			return fmt.Errorf("%w: a chain of more than %d bytes", ErrGuest, chainMax)
		}
		if size > 0 {
			part, err := m.at(addr, uint64(size))
			if err != nil {
				return err
			}
			c.parts = append(c.parts, part)
		}
		if flags&descNext == 0 {
			return nil
		}
		next = binary.LittleEndian.Uint16(d[14:])
	}
	return fmt.Errorf("%w: a chain that does not end", ErrGuest)
}

// chainMax bounds the bytes of a chain. Linux has 64 KiB and a header in one.
const chainMax = 1 << 20

// split divides the chain behind n bytes, which it copies to or from b.
func (c *chain) split(n int, copyPart func(part []byte, off int)) error {
	if c.size < n {
		return fmt.Errorf("%w: a chain of %d bytes", ErrGuest, c.size)
	}
	c.size -= n
	for off := 0; off < n; {
		k := min(n-off, len(c.parts[0]))
		copyPart(c.parts[0][:k], off)
		off += k
		if c.parts[0] = c.parts[0][k:]; len(c.parts[0]) == 0 {
			c.parts = c.parts[1:]
		}
	}
	return nil
}

// truncate leaves the first n bytes.
func (c *chain) truncate(n int) {
	for i := range c.parts {
		if len(c.parts[i]) >= n {
			c.parts[i] = c.parts[i][:n]
			c.parts = c.parts[:i+1]
			break
		}
		n -= len(c.parts[i])
	}
}

// put returns a chain to the driver, with n bytes written. The driver sees it after publish.
func (q *queue) put(c *chain, n int) {
	at := ringHeader + usedElemSize*(uint32(q.filled)&(q.num-1))
	binary.LittleEndian.PutUint32(q.used[at:], uint32(c.head))
	binary.LittleEndian.PutUint32(q.used[at+4:], uint32(n))
	q.taken++
	q.filled++
	q.held += c.links
}

// publish shows the driver what was put, and interrupts it unless it does not want that.
func (q *queue) publish() {
	q.show()
	q.interrupt()
}

// isOwed says that the driver was not told of all that was put.
func (q *queue) isOwed() bool { return q.told != q.filled }

// interrupt tells the driver of what it was shown.
func (q *queue) interrupt() {
	if !q.isOwed() {
		return
	}
	q.told, q.held = q.filled, 0
	if head(q.avail).Load()&noInterrupt == 0 && q.call >= 0 {
		one := [8]byte{1}
		_, _ = unix.Write(q.call, one[:]) // EAGAIN: the driver has interrupts that it has not taken
	}
}

func (q *queue) show() {
	flags := uint32(0)
	if q.quiet {
		flags = noNotify
	}
	head(q.used).Store(uint32(q.filled)<<16 | flags)
}

// hush asks the driver not to kick, or to kick again. After the latter, the caller looks once more.
func (q *queue) hush(quiet bool) {
	if q.quiet != quiet {
		q.quiet = quiet
		q.show()
	}
}
