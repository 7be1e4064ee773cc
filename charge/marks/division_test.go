package marks

import (
	"math/rand/v2"
	"testing"
	"time"
)

const ms = time.Millisecond

func TestDivisionSteps(t *testing.T) {
	type step struct {
		gained   time.Duration
		marked   map[uint32]time.Duration
		overhead time.Duration
		last     bool
		want     map[uint32]time.Duration
	}
	for name, steps := range map[string][]step{
		"overhead in proportion": {
			{40 * ms, map[uint32]time.Duration{1: 15 * ms, 2: 5 * ms}, 20 * ms, false, map[uint32]time.Duration{1: 30 * ms, 2: 10 * ms}},
		},
		"the daemon's own takes part": {
			{40 * ms, map[uint32]time.Duration{0: 15 * ms, 2: 5 * ms}, 20 * ms, false, map[uint32]time.Duration{0: 30 * ms, 2: 10 * ms}},
		},
		"overhead for nobody": {
			{40 * ms, nil, 40 * ms, false, map[uint32]time.Duration{0: 40 * ms}},
		},
		"overhead for who was worked for just now": {
			{10 * ms, map[uint32]time.Duration{1: 10 * ms}, 0, false, map[uint32]time.Duration{1: 10 * ms}},
			{10 * ms, nil, 10 * ms, false, map[uint32]time.Duration{1: 10 * ms}},
		},
		"marks that miss a little": {
			{10 * ms, map[uint32]time.Duration{1: 8 * ms}, 0, false, map[uint32]time.Duration{1: 10 * ms}},
		},
		"marks that count too much": {
			{10 * ms, map[uint32]time.Duration{1: 9 * ms, 2: 3 * ms}, 0, false, map[uint32]time.Duration{1: 7500 * time.Microsecond, 2: 2500 * time.Microsecond}},
		},
		"marks that come later": {
			{20 * ms, map[uint32]time.Duration{2: 10 * ms}, 0, false, map[uint32]time.Duration{2: 10 * ms}},
			{20 * ms, map[uint32]time.Duration{2: 10 * ms}, 0, false, map[uint32]time.Duration{2: 10 * ms}},
			{0, map[uint32]time.Duration{1: 20 * ms}, 0, false, map[uint32]time.Duration{1: 20 * ms}},
		},
		"marks that never come": {
			{600 * ms, nil, 0, false, map[uint32]time.Duration{0: 100 * ms}},
			{100 * ms, nil, 0, true, map[uint32]time.Duration{0: 600 * ms}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var d division
			for i, s := range steps {
				got := d.step(s.gained, ms, s.marked, s.overhead, s.last)
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

// Whatever the marks say, the parts are what the clock has gained.
func TestDivisionKeepsTheClock(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	some := func() time.Duration { return time.Duration(random.Int64N(int64(time.Second)) >> random.IntN(31)) }
	for range 100 {
		var d division
		var clock, sum time.Duration
		for i := range 200 {
			gained := some()
			clock += gained
			marked := make(map[uint32]time.Duration)
			for range random.IntN(4) {
				marked[random.Uint32N(6)] = some()
			}
			for owner, part := range d.step(gained, some(), marked, some(), i == 199) {
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
