package enforce

import (
	"math/rand/v2"
	"testing"
	"time"
)

// kernel counts periods that begin at a phase, when it runs.
type kernel struct {
	period, phase time.Duration
}

func (k kernel) count(now time.Duration) uint64 {
	return uint64((now - k.phase + k.period) / k.period)
}

// learn has a phase look when it wants to, and at the begin of each period, a little
// late as on a real machine.
func learn(p *phase, k kernel, now time.Duration, looks int, r *rand.Rand) time.Duration {
	begin := now
	for range looks {
		p.look(now, k.count(now))
		if now >= begin {
			begin = p.after(now) + afterBegin
		}
		next := begin
		if n := p.next(now); n > 0 {
			next = min(next, max(n, now+finest))
		}
		now = next + time.Duration(r.Int64N(int64(60*time.Microsecond)))
	}
	return now
}

// off is how far the learnt begin is from the real one.
func off(p *phase, k kernel) time.Duration {
	d := (p.after(0) - k.phase) % k.period
	if d < 0 {
		d += k.period
	}
	return min(d, k.period-d)
}

func TestPhaseIsLearnt(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 3))
		period := []time.Duration{10, 50, 100, 1000}[r.IntN(4)] * ms
		k := kernel{period, time.Duration(r.Int64N(int64(period)))}
		p := newPhase(period)
		now := learn(&p, k, time.Duration(r.Int64N(int64(time.Second))), 100, r)
		if !p.known() || off(&p, k) > 2*precise {
			t.Errorf("seed %d: known %v, off by %v of %v", seed, p.known(), off(&p, k), period)
		}
		// Somebody has changed the period and changed it back.
		k.phase = (k.phase + period/3) % period
		learn(&p, k, now, int(2*checkPhase/period)+200, r)
		if !p.known() || off(&p, k) > 2*precise {
			t.Errorf("seed %d: moved, known %v, off by %v of %v", seed, p.known(), off(&p, k), period)
		}
	}
}

func TestPhaseOfAnIdleGroupCostsNothing(t *testing.T) {
	p := newPhase(100 * ms)
	for i := range 100 {
		now := time.Duration(i) * 100 * ms
		p.look(now, 5)
		if p.next(now) != 0 {
			t.Fatalf("look %d: it wants another one", i)
		}
	}
}
