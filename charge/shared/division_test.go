package shared

import (
	"math/rand/v2"
	"testing"
	"time"
)

const ms = time.Millisecond

type byOwner = map[uint32]time.Duration

func TestDivisionSteps(t *testing.T) {
	type step struct {
		gained   time.Duration
		counted  byOwner
		overhead time.Duration
		open     byOwner
		last     bool
		want     byOwner
	}
	for name, steps := range map[string][]step{
		"overhead in proportion": {
			{gained: 40 * ms, counted: byOwner{1: 15 * ms, 2: 5 * ms}, overhead: 20 * ms, want: byOwner{1: 30 * ms, 2: 10 * ms}},
		},
		"the daemon's own takes part": {
			{gained: 40 * ms, counted: byOwner{0: 15 * ms, 2: 5 * ms}, overhead: 20 * ms, want: byOwner{0: 30 * ms, 2: 10 * ms}},
		},
		"overhead for nobody": {
			{gained: 40 * ms, overhead: 40 * ms, want: byOwner{0: 40 * ms}},
		},
		"overhead for who was worked for just now": {
			{gained: 10 * ms, counted: byOwner{1: 10 * ms}, want: byOwner{1: 10 * ms}},
			{gained: 10 * ms, overhead: 10 * ms, want: byOwner{1: 10 * ms}},
		},
		"nine to one": {
			{gained: 100 * ms, counted: byOwner{1: 63 * ms, 2: 7 * ms}, overhead: 30 * ms, want: byOwner{1: 90 * ms, 2: 10 * ms}},
		},
		"counts that miss a little": {
			{gained: 10 * ms, counted: byOwner{1: 8 * ms}, want: byOwner{1: 10 * ms}},
		},
		"counts that are too much": {
			{gained: 10 * ms, counted: byOwner{1: 9 * ms, 2: 3 * ms}, want: byOwner{1: 7500 * time.Microsecond, 2: 2500 * time.Microsecond}},
		},
		"counts that come later": {
			{gained: 20 * ms, counted: byOwner{2: 10 * ms}, want: byOwner{2: 10 * ms}},
			{gained: 20 * ms, counted: byOwner{2: 10 * ms}, want: byOwner{2: 10 * ms}},
			{gained: 0, counted: byOwner{1: 20 * ms}, want: byOwner{1: 20 * ms}},
		},
		"counts that never come": {
			{gained: 600 * ms, want: byOwner{0: 100 * ms}},
			{gained: 100 * ms, last: true, want: byOwner{0: 600 * ms}},
		},
		"a little open time is not the others'": {
			{gained: 12 * ms, counted: byOwner{2: 10 * ms}, open: byOwner{1: 2 * ms}, want: byOwner{2: 10 * ms}},
			{gained: 0, counted: byOwner{1: 2 * ms}, want: byOwner{1: 2 * ms}},
		},
		"open time that is counted for another": {
			{gained: 300 * ms, open: byOwner{1: 300 * ms}, want: nil},
			{gained: 0, counted: byOwner{2: 300 * ms}, want: byOwner{2: 300 * ms}},
		},
		"open for longer than can be left": {
			{gained: 410 * ms, counted: byOwner{2: 10 * ms}, open: byOwner{1: 400 * ms}, want: byOwner{2: 10 * ms}},
			{gained: 410 * ms, counted: byOwner{2: 10 * ms}, open: byOwner{1: 800 * ms}, want: byOwner{1: 300 * ms, 2: 10 * ms}},
			{gained: 110 * ms, counted: byOwner{2: 10 * ms}, open: byOwner{1: 900 * ms}, want: byOwner{1: 100 * ms, 2: 10 * ms}},
			{gained: 0, counted: byOwner{1: 900 * ms}, want: byOwner{1: 500 * ms}},
			{gained: 10 * ms, counted: byOwner{1: 10 * ms}, want: byOwner{1: 10 * ms}},
		},
		"given too early to one whose it was not": {
			{gained: 800 * ms, open: byOwner{1: 800 * ms}, want: byOwner{1: 300 * ms}},
			{gained: 0, counted: byOwner{2: 800 * ms}, want: byOwner{2: 500 * ms}},
			{gained: 10 * ms, counted: byOwner{1: 10 * ms}, want: byOwner{1: 10 * ms}},
		},
		"open for two": {
			{gained: 800 * ms, open: byOwner{1: 600 * ms, 2: 200 * ms}, want: byOwner{1: 225 * ms, 2: 75 * ms}},
			{gained: 0, counted: byOwner{1: 600 * ms, 2: 200 * ms}, want: byOwner{1: 375 * ms, 2: 125 * ms}},
		},
		"still open at the end": {
			{gained: 310 * ms, counted: byOwner{2: 10 * ms}, open: byOwner{1: 300 * ms}, last: true, want: byOwner{1: 300 * ms, 2: 10 * ms}},
		},
		"more open than the clock has": {
			{gained: 100 * ms, counted: byOwner{2: 10 * ms}, open: byOwner{1: 300 * ms}, want: byOwner{2: 10 * ms}},
			{gained: 10 * ms, counted: byOwner{1: 300 * ms}, last: true, want: byOwner{1: 100 * ms}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var d division
			for i, s := range steps {
				if s.counted == nil {
					s.counted = byOwner{}
				}
				got := d.step(s.gained, ms, counts{of: s.counted, overhead: s.overhead, open: s.open}, s.last)
				for owner, want := range s.want {
					if (got[owner] - want).Abs() > time.Microsecond {
						t.Errorf("step %d: owner %d has %v, want %v", i, owner, got[owner], want)
					}
					delete(got, owner)
				}
				for owner, d := range got {
					if d > time.Microsecond {
						t.Errorf("step %d: owner %d has %v, want nothing", i, owner, d)
					}
				}
			}
		})
	}
}

// For any counts, the parts add up to the gain of the clock.
func TestDivisionKeepsTheClock(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	some := func() time.Duration { return time.Duration(random.Int64N(int64(time.Second)) >> random.IntN(31)) }
	for range 100 {
		var d division
		var clock, sum time.Duration
		for i := range 200 {
			gained := some()
			clock += gained
			m := counts{of: byOwner{}, open: byOwner{}, overhead: some()}
			for range random.IntN(4) {
				m.of[random.Uint32N(6)] = some()
			}
			for range random.IntN(3) {
				m.open[random.Uint32N(6)] = some()
			}
			for owner, part := range d.step(gained, some(), m, i == 199) {
				if part < 0 {
					t.Fatalf("owner %d has %v", owner, part)
				}
				sum += part
			}
			if sum+d.rest != clock || d.rest > patience+time.Microsecond {
				t.Fatalf("step %d: divided %v of %v, %v is left", i, sum, clock, d.rest)
			}
		}
		if sum != clock {
			t.Fatalf("divided %v of %v", sum, clock)
		}
	}
}
