package translate

import (
	"container/heap"
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"
)

// The pool gives out slots. The callers hold the table's lock.

// queue has the slots in the order of their last use as far as the queue knows it. Answers move the
// time of last use without the queue, so that they are cheap: reclaim puts a slot back that was
// used later.
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

func (t *Table) enqueue(i uint32) { heap.Push(&t.queue, item{t.slots[i].until, i}) }

// take returns a slot that was never used, or an empty slot.
func (t *Table) take() (uint32, error) {
	if i := t.used; int(i) < len(t.slots)-1 {
		t.used++
		return i, nil
	}
	var err error
	if len(t.gaps) == 0 {
		err = t.reclaim()
	}
	if n := len(t.gaps); n > 0 {
		i := t.gaps[n-1]
		t.gaps = t.gaps[:n-1]
		return i, nil
	}
	t.stats.Exhausted++
	if err != nil {
		return 0, err
	}
	return 0, fmt.Errorf("%w: all %d of %s are in use", ErrExhausted, len(t.slots)-2, t.prefix)
}

// reclaimedPart is which part of the pool is reclaimed at once: to look for connected sockets takes
// milliseconds.
const reclaimedPart = 64

// reclaim empties the slots that have been out of use for the longest time.
func (t *Table) reclaim() error {
	now := t.clock()
	var connected map[netip.Addr]int
	for looked, left := false, max(1, len(t.slots)/reclaimedPart); left > 0 && len(t.queue) > 0 && t.queue[0].at <= int64(now); {
		if first := &t.queue[0]; t.slots[first.slot].until > first.at {
			first.at = t.slots[first.slot].until
			heap.Fix(&t.queue, 0)
			continue
		}
		if !looked {
			var err error
			if connected, err = t.connected(); err != nil {
				return err
			}
			looked = true
		}
		i := heap.Pop(&t.queue).(item).slot
		if t.isConnected(connected, i) {
			t.slots[i].until = int64(now + Grace)
			t.enqueue(i)
			continue
		}
		t.drop(i)
		t.stats.Reclaimed++
		left--
	}
	return nil
}

// isConnected tells whether a socket is connected to the host of a slot.
func (t *Table) isConnected(connected map[netip.Addr]int, i uint32) bool {
	return connected[t.at(i)]+connected[t.slots[i].addr()] > 0
}

// drop removes a mapping, which the queue has no more.
func (t *Table) drop(i uint32) {
	delete(t.six, t.slots[i].v6)
	t.slots[i].clear()
	t.gaps = append(t.gaps, i)
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
	return i, i < t.used && t.slots[i].sum != 0
}

func (s *slot) addr() netip.Addr { return netip.AddrFrom16(s.v6) }

// in returns the time until which a mapping of the file is in use. It is at most the time that an
// answer of now would set: no table writes a later one.
func (s *slot) in(now time.Duration) int64 {
	return max(int64(now+Grace), min(s.until, int64(now+MaxTTL+Grace)))
}
