// Package slots gives each owner a small number, its slot, for kernel programs that keep a sum per
// owner in an array. It also maps that array, so that reading it needs no system call.
//
// It does not know what the sums count. It needs CAP_BPF to map an array, and Linux 5.5.
package slots

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// ErrFull says that all slots are in use.
var ErrFull = errors.New("too many owners")

// ErrOwner says that the owner is 0, which means no owner.
var ErrOwner = errors.New("owner 0 means no owner")

// Table has the owners with a slot. It is not safe for concurrent use.
type Table struct {
	byOwner map[uint32]*holding
	free    []uint32 // the longest free first, so that a late addition to a slot finds no new owner
}

type holding struct {
	slot uint32
	held int // how many times Hold was called without Release
}

// NewTable returns a table of the slots from first to limit-1.
func NewTable(first, limit uint32) *Table {
	t := &Table{byOwner: make(map[uint32]*holding)}
	for s := first; s < limit; s++ {
		t.free = append(t.free, s)
	}
	return t
}

// Hold returns the slot of an owner, and counts one more thing that belongs to the owner.
func (t *Table) Hold(owner uint32) (uint32, error) {
	if owner == 0 {
		return 0, ErrOwner
	}
	h := t.byOwner[owner]
	if h == nil {
		if len(t.free) == 0 {
			return 0, ErrFull
		}
		h = &holding{slot: t.free[0]}
		t.free = t.free[1:]
		t.byOwner[owner] = h
	}
	h.held++
	return h.slot, nil
}

// Release undoes one Hold. The owner keeps the slot until Sweep.
func (t *Table) Release(owner uint32) {
	if h := t.byOwner[owner]; h != nil && h.held > 0 {
		h.held--
	}
}

// All returns the owners and their slots, including owners without any Hold left.
func (t *Table) All() iter.Seq2[uint32, uint32] {
	return func(yield func(uint32, uint32) bool) {
		for owner, h := range t.byOwner {
			if !yield(owner, h.slot) {
				return
			}
		}
	}
}

// Sweep frees the slots of owners without any Hold left. Read their sums before.
func (t *Table) Sweep() {
	maps.DeleteFunc(t.byOwner, func(_ uint32, h *holding) bool {
		if h.held > 0 {
			return false
		}
		t.free = append(t.free, h.slot)
		return true
	})
}

// Sums is a mapped array of sums. Sums only grow. Read them with sync/atomic.
type Sums []uint64

// Map maps an array whose values consist only of sums.
func Map(m *ebpf.Map) (Sums, error) {
	size := int(m.MaxEntries() * m.ValueSize())
	page := unix.Getpagesize()
	b, err := unix.Mmap(m.FD(), 0, (size+page-1)/page*page, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the sums: %w", err)
	}
	return unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), len(b)/8), nil
}

// Unmap unmaps the array.
func (s Sums) Unmap() error {
	return unix.Munmap(unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), len(s)*8))
}
