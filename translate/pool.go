package translate

import (
	"container/heap"
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"
)

// The pool gives out slots. The callers hold the table's lock.

// queue has the slots that no socket holds, in the order of their last use as far as the queue
// knows it. Answers move the time of last use without the queue, so that they are cheap: take puts
// a slot back that was used later.
type queue []item

type item struct {
	at   int64
	slot uint32
}

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].at < q[j].at }
func (q queue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)        { *q = append(*q, x.(item)) }
func (q *queue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

// toIdle puts a slot into the queue, unless the queue already has it.
func (t *Table) toIdle(i uint32) {
	if t.uses[i].idle {
		return
	}
	t.uses[i].idle = true
	heap.Push(&t.idle, item{t.slots[i].until, i})
}

// take returns a slot that was never used, or an empty slot. If there is none, take empties the
// slot that has been out of use for the longest time.
func (t *Table) take() (uint32, error) {
	if i := len(t.uses); i < len(t.slots)-1 {
		t.uses = append(t.uses, use{})
		return uint32(i), nil
	}
	if n := len(t.gaps); n > 0 {
		i := t.gaps[n-1]
		t.gaps = t.gaps[:n-1]
		return i, nil
	}
	for now := int64(t.clock()); len(t.idle) > 0 && t.idle[0].at <= now; {
		first := heap.Pop(&t.idle).(item)
		u, s := &t.uses[first.slot], &t.slots[first.slot]
		u.idle = false
		if u.holds > 0 { // Release puts the slot back
			continue
		}
		if s.until > first.at {
			t.toIdle(first.slot)
			continue
		}
		t.drop(first.slot)
		t.stats.Reclaimed++
		return first.slot, nil
	}
	t.stats.Exhausted++
	return 0, fmt.Errorf("%w: all %d of %s are in use", ErrExhausted, len(t.slots)-2, t.prefix)
}

// drop removes a mapping.
func (t *Table) drop(i uint32) {
	delete(t.six, t.slots[i].v6)
	t.slots[i].clear()
}

// at returns the virtual address of a slot.
func (t *Table) at(i uint32) netip.Addr {
	b := t.prefix.Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+i)
	return netip.AddrFrom4(b)
}

// slotOf returns the slot of a virtual address that has a mapping.
func (t *Table) slotOf(v4 netip.Addr) (uint32, bool) {
	if !t.prefix.Contains(v4) {
		return 0, false
	}
	b, first := v4.As4(), t.prefix.Addr().As4()
	i := binary.BigEndian.Uint32(b[:]) - binary.BigEndian.Uint32(first[:])
	return i, int(i) < len(t.uses) && t.slots[i].sum != 0
}

func (s *slot) addr() netip.Addr { return netip.AddrFrom16(s.v6) }

// in returns the time until which a mapping of the file is in use. It is at most the time that an
// answer of now would set: no table writes a later one.
func (s *slot) in(now time.Duration) int64 {
	return max(int64(now+Grace), min(s.until, int64(now+MaxTTL+Grace)))
}
