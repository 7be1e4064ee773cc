package shared

import (
	"math"
	"time"
)

const (
	// patience is how much CPU time may be left for a later Take, because the events
	// do not tell yet whose it is: a thread is accounted at its next event.
	patience = 500 * time.Millisecond

	// memory is for how long work for an owner is a reason to take a part of the
	// overhead: what is done in between, and counted at no event, may be for it too.
	memory = 300 * time.Millisecond

	// forgotten is less than anybody works for.
	forgotten = float64(time.Microsecond)
)

// counts are what the kernel programs have counted of a process since the step before. Owner 0 is
// the daemon itself.
type counts struct {
	of       map[uint32]time.Duration // time that is counted, by owner
	overhead time.Duration
	open     map[uint32]time.Duration // by owner: for how long threads run since their last event
}

func (m counts) sum() time.Duration { return sum(m.of) + m.overhead }

func sum(parts map[uint32]time.Duration) time.Duration {
	var all time.Duration
	for _, d := range parts {
		all += d
	}
	return all
}

// division divides the time that a clock tells by the weights that are counted. The
// sum of its parts is the clock, whatever the weights.
//
// An event tells of the time before it, and may come late: a thread can compute for
// seconds without one. Time that is open is not divided among those who are counted
// meanwhile. Up to patience of it is left for its event, which may say that it was for
// somebody else than the event before it said. More than that is given at once to whom
// it is open for; when its event comes, that much of the count is left out.
type division struct {
	rest   time.Duration            // not divided yet
	recent map[uint32]float64       // ns by owner, fading
	given  map[uint32]time.Duration // of open time, by owner
}

// step divides what the clock has gained since the step before, which was as long ago as
// passed. Everything is divided in the last step.
func (d *division) step(gained, passed time.Duration, m counts, last bool) map[uint32]time.Duration {
	d.rest += gained
	d.settle(m)
	left := d.give(m, last)
	weights, sum := d.weigh(passed, m.of, float64(m.overhead))
	due := d.rest - left
	// Counts miss a part of a thread's switches, up to a quarter if it does little
	// else. If they miss more there are some to come.
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
	if last { // some nanoseconds of rounding
		parts[0] += d.rest
		d.rest = 0
	}
	return parts
}

// ahead is what was given and is not counted yet.
func (d *division) ahead() time.Duration { return sum(d.given) }

// settle leaves out of the counts what was given before they came. What is open no more
// is counted, for whomever: no account of it is kept.
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

// give adds to the counts what is due of the open time, and returns what of it is left
// for later.
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

// weigh gives everybody a part of the overhead: as much as it was worked for
// lately. What nobody was worked for is the daemon's own.
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

// shares is what was worked for whom lately, and the sum of it, which is not 0.
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
