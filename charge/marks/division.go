package marks

import (
	"math"
	"time"
)

const (
	// patience is how much CPU time may be left for a later Take, because the marks
	// do not tell yet whose it is: a thread is accounted at its next mark.
	patience = 500 * time.Millisecond

	// memory is for how long work for an owner is a reason to take a part of the
	// overhead: what is done in between, and is of no mark, may be for it too.
	memory = 300 * time.Millisecond

	// forgotten is less than anybody works for.
	forgotten = float64(time.Microsecond)
)

// division divides the time that a clock tells by the weights that marks tell. The
// sum of its parts is the clock, whatever the weights.
type division struct {
	rest   time.Duration      // not divided yet
	recent map[uint32]float64 // ns by owner, fading
}

// step divides what the clock has gained. marked is the time of each owner, 0 being
// the daemon itself, since the step before, which was as long ago as passed.
// Everything is divided in the last step.
func (d *division) step(gained, passed time.Duration, marked map[uint32]time.Duration, overhead time.Duration, last bool) map[uint32]time.Duration {
	d.rest += gained
	weights, sum := d.weigh(passed, marked, float64(overhead))
	due := d.rest
	// Marks miss a part of a thread's switches, up to a quarter if it does little
	// else. If they miss more there are some to come.
	if all := time.Duration(sum); !last && all < due*3/4 {
		due = max(all, due-patience)
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

// weigh gives everybody a part of the overhead: as much as it was worked for
// lately. What nobody was worked for is the daemon's own.
func (d *division) weigh(passed time.Duration, marked map[uint32]time.Duration, overhead float64) (map[uint32]float64, float64) {
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
	for owner, ns := range marked {
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
