package shared

import (
	"math"
	"time"
)

const (
	// patience is the CPU time that Take may leave for a later Take, because no event tells yet
	// whose time it is. The kernel programs count a thread's time at the thread's next event.
	patience = 500 * time.Millisecond

	// memory is the time constant of the recent work that the overhead is divided by. Work between
	// two events, which no event counts, may be for the recent owners, too.
	memory = 300 * time.Millisecond

	// forgotten is the recent work below which an owner is dropped, in nanoseconds.
	forgotten = float64(time.Microsecond)
)

// counts are the sums of the kernel programs for one process since the step before. Owner 0 is the
// daemon itself.
type counts struct {
	of       map[uint32]time.Duration // counted time by owner
	overhead time.Duration
	open     map[uint32]time.Duration // by owner: running time of threads since their last event
}

func (m counts) sum() time.Duration { return sum(m.of) + m.overhead }

func sum(parts map[uint32]time.Duration) time.Duration {
	var all time.Duration
	for _, d := range parts {
		all += d
	}
	return all
}

// division divides the time of a CPU clock in proportion to the counted times. The sum of the parts
// always equals the clock.
//
// An event counts the time before it, and may come late: a thread can compute for seconds without
// an event. Such time is open. Open time is not divided among the owners that are counted
// meanwhile. Up to patience of it waits for its event, which may name another owner than the event
// before. Open time above that goes at once to the owner for whom it is open. When its event comes,
// the count is reduced by that time.
type division struct {
	rest   time.Duration            // not divided yet
	recent map[uint32]float64       // recent work in ns by owner, decaying
	given  map[uint32]time.Duration // by owner: open time that was divided before its event
}

// step divides the clock's gain since the step before. passed is the time since then. The last step
// divides everything.
func (d *division) step(gained, passed time.Duration, m counts, last bool) map[uint32]time.Duration {
	d.rest += gained
	d.settle(m)
	left := d.give(m, last)
	weights, sum := d.weigh(passed, m.of, float64(m.overhead))
	due := d.rest - left
	// The counts miss a part of the time in which a thread is switched: up to a quarter if the
	// thread does little else. If they miss more, some events are still to come.
	if all := time.Duration(sum); !last && all < due*3/4 {
		due = max(all, due-(patience-left))
	}
	parts := make(map[uint32]time.Duration, len(weights))
	if sum == 0 {
		weights, sum = d.shares()
	}
	for owner, w := range weights {
		part := min(time.Duration(float64(due)*w/sum), d.rest)
		parts[owner] = part
		d.rest -= part
	}
	if last { // the rest is a few nanoseconds of rounding
		parts[0] += d.rest
		d.rest = 0
	}
	return parts
}

// ahead returns the open time that was divided before its event.
func (d *division) ahead() time.Duration { return sum(d.given) }

// settle reduces the counts by the time that was divided before its event. If time is not open any
// more, an event has counted it, for any owner.
func (d *division) settle(m counts) {
	for owner, given := range d.given {
		still := min(given, m.open[owner])
		if counted := m.of[owner]; counted > 0 {
			m.of[owner] = max(counted-(given-still), 0)
		}
		if d.given[owner] = still; still == 0 {
			delete(d.given, owner)
		}
	}
}

// give adds the open time above patience to the counts, and returns the open time that is left for
// later.
func (d *division) give(m counts, last bool) (left time.Duration) {
	all := sum(m.open) - d.ahead()
	if all <= 0 {
		return 0
	}
	left = max(min(all, d.rest-m.sum()), 0)
	due := max(left-patience, 0)
	if last {
		due = left
	}
	if due == 0 {
		return left
	}
	if d.given == nil {
		d.given = make(map[uint32]time.Duration)
	}
	share := float64(due) / float64(all)
	for owner, ns := range m.open {
		part := time.Duration(float64(ns-d.given[owner]) * share)
		m.of[owner] += part
		d.given[owner] += part
	}
	return left - due
}

// weigh adds to each owner's count a part of the overhead, in proportion to the recent work for the
// owner. Without recent work the overhead is the daemon's own.
func (d *division) weigh(passed time.Duration, counted map[uint32]time.Duration, overhead float64) (map[uint32]float64, float64) {
	if d.recent == nil {
		d.recent = make(map[uint32]float64)
	}
	fade := math.Exp(-float64(passed) / float64(memory))
	for owner, ns := range d.recent {
		if d.recent[owner] = ns * fade; ns*fade < forgotten {
			delete(d.recent, owner)
		}
	}
	weights, sum := make(map[uint32]float64), overhead
	for owner, ns := range counted {
		if ns > 0 {
			d.recent[owner] += float64(ns)
			weights[owner] = float64(ns)
			sum += float64(ns)
		}
	}
	shares, all := d.shares()
	for owner, ns := range shares {
		weights[owner] += overhead * ns / all
	}
	return weights, sum
}

// shares returns the recent work by owner, and its sum. The sum is not 0.
func (d *division) shares() (map[uint32]float64, float64) {
	if len(d.recent) == 0 {
		return map[uint32]float64{0: 1}, 1
	}
	var sum float64
	for _, ns := range d.recent {
		sum += ns
	}
	return d.recent, sum
}
