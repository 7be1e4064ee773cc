// Package slots numbers owners densely for kernel programs, which add up what is
// theirs in an array, and maps that array, so that reading it takes no system call.
//
// It does not know what is added up. It takes CAP_BPF to map an array; Linux 5.5
// or later.
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

// ErrFull says that there are as many owners as the kernel programs can tell apart.
var ErrFull = errors.New("too many owners")

// ErrOwner says that 0 is nobody, who can own nothing.
var ErrOwner = errors.New("owner 0 is nobody")

// Table is the owners that have a slot. It is not safe for use by several
// goroutines at once.
type Table struct {
	byOwner map[uint32]*holding
	free    []uint32 // the longest free first: what is late for it finds nobody's
}

type holding struct {
	slot uint32
	held int // things that are this owner's
}

// NewTable returns a table of the slots from first to limit-1.
func NewTable(first, limit uint32) *Table {
	t := &Table{byOwner: make(map[uint32]*holding)}
	for s := first; s < limit; s++ {
		t.free = append(t.free, s)
	}
	return t
}

// Hold returns the slot of an owner, for one more thing that is its own.
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

// Release gives one thing up. The slot stays the owner's until Sweep.
func (t *Table) Release(owner uint32) {
	if h := t.byOwner[owner]; h != nil && h.held > 0 {
		h.held--
	}
}

// All returns the owners and their slots, of those too that own nothing any more.
func (t *Table) All() iter.Seq2[uint32, uint32] {
	return func(yield func(uint32, uint32) bool) {
		for owner, h := range t.byOwner {
			if !yield(owner, h.slot) {
				return
			}
		}
	}
}

// Sweep frees the slots of owners that own nothing, once their sums are read.
func (t *Table) Sweep() {
	maps.DeleteFunc(t.byOwner, func(_ uint32, h *holding) bool {
		if h.held > 0 {
			return false
		}
		t.free = append(t.free, h.slot)
		return true
	})
}

// Sums is a mapped array of sums. They only grow; read them with sync/atomic.
type Sums []uint64

// Map maps an array whose values are sums only.
func Map(m *ebpf.Map) (Sums, error) {
	size := int(m.MaxEntries() * m.ValueSize())
	page := unix.Getpagesize()
	b, err := unix.Mmap(m.FD(), 0, (size+page-1)/page*page, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the sums: %w", err)
	}
	return unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), len(b)/8), nil
}

// Unmap gives the array back.
func (s Sums) Unmap() error {
	return unix.Munmap(unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), len(s)*8))
}
