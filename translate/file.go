package translate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/tsugiki/tsugiki/internal/mapped"
)

// The file of a table is its array of slots, mapped into memory. So a mapping is in the file before
// an answer contains it, without a system call. After the header of internal/mapped, the spare
// octets hold the pool's prefix.

const magic = "tsugi46a"

// busyWait is the time within which an ending process must release a table.
var busyWait = 2 * time.Second

// pool returns the prefix in the form of the file.
func (t *Table) pool() (b [8]byte) {
	a := t.prefix.Addr().As4()
	copy(b[:], a[:])
	b[4] = byte(t.prefix.Bits())
	return b
}

// open maps the file and loads it.
func (t *Table) open(path string, slots int) error {
	size := mapped.HeaderSize + slots*int(unsafe.Sizeof(slot{}))
	f, err := mapped.Open(path, magic, size, busyWait, nil)
	if err != nil {
		return err
	}
	if f.Aside != "" {
		return errors.Join(errors.New(f.Aside), os.Rename(path+".bad", path), f.Close())
	}
	t.file = f
	t.slots = unsafe.Slice((*slot)(unsafe.Pointer(&f.Data[mapped.HeaderSize])), slots)
	if err := t.load(f.Data[mapped.Spare:]); err != nil {
		return errors.Join(err, f.Close())
	}
	return nil
}

// load checks the file and makes the rest of the table from it.
func (t *Table) load(spare []byte) error {
	ours, theirs := t.pool(), [8]byte(spare)
	switch theirs {
	case [8]byte{}: // new
		copy(spare, ours[:])
	case ours:
	default:
		return fmt.Errorf("the file has the virtual addresses %s/%d instead of %s", netip.AddrFrom4([4]byte(theirs[:4])), theirs[4], t.prefix)
	}
	now, last := t.clock(), 0
	for i := range t.slots {
		if t.slots[i].sum == 0 {
			continue
		}
		if err := t.check(uint32(i)); err != nil {
			return fmt.Errorf("mapping of %s: %w", t.at(uint32(i)), err)
		}
		t.six[t.slots[i].v6] = uint32(i)
		last = i
	}
	t.used = uint32(last) + 1
	for i := uint32(1); i < t.used; i++ {
		if t.slots[i].sum == 0 {
			t.gaps = append(t.gaps, i)
			continue
		}
		t.slots[i].until = t.slots[i].in(now)
		t.enqueue(i)
	}
	return nil
}

// check returns an error for an invalid mapping of the file.
func (t *Table) check(i uint32) error {
	s := &t.slots[i]
	switch _, twice := t.six[s.v6]; {
	case s.sum != s.checksum(i):
		return errors.New("the checksum is wrong")
	case i == 0 || int(i) == len(t.slots)-1:
		return errors.New("the address is not in the pool")
	case twice:
		return fmt.Errorf("%s has another virtual address, too", s.addr())
	}
	if err := t.refused(s.addr()); err != nil {
		return fmt.Errorf("%s: %w", s.addr(), err)
	}
	return nil
}

// set fills an empty slot.
func (s *slot) set(i uint32, v6 netip.Addr, until time.Duration) {
	s.v6, s.until = v6.As16(), int64(until)
	atomic.StoreUint32(&s.sum, s.checksum(i))
}

// clear empties a slot.
func (s *slot) clear() { atomic.StoreUint32(&s.sum, 0) }

// checksum is never zero. It does not cover the deadline, which every answer moves.
func (s *slot) checksum(i uint32) uint32 {
	sum := crc32.ChecksumIEEE(s.v6[:])
	return crc32.Update(sum, crc32.IEEETable, binary.BigEndian.AppendUint32(nil, i)) | 1
}
