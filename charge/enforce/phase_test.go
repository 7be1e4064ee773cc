package enforce

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/charge/balance"
)

// kernel simulates the kernel's count of periods for a group that always runs.
type kernel struct {
	period time.Duration
	first  time.Duration // when the first period of this length began
	before uint64        // periods by then
	late   time.Duration // delay of the counting of periods
	until  time.Duration // that begin before this time
}

// begun returns the beginning of the last period.
func (k *kernel) begun(now time.Duration) time.Duration {
	return k.first + (now-k.first)/k.period*k.period
}

func (k *kernel) count(now time.Duration) uint64 {
	if now < k.first {
		return k.before
	}
	begun := k.begun(now)
	n := k.before + uint64((begun-k.first)/k.period) + 1
	if begun < k.until && now < begun+k.late {
		n--
	}
	return n
}

// change changes the length of the following periods. The running timer still fires once at its old
// time plus shift.
func (k *kernel) change(now, period, shift time.Duration) {
	*k = kernel{period: period, first: k.begun(now) + k.period + shift, before: k.count(now)}
}

// looks looks at a group until a time, like an account in debt: at the beginning of each period,
// when the phase asks for it, and at least every pulse. Each look is a little late, as on a real
// machine. It returns the number of looks that only the phase asked for.
func (k *kernel) looks(p *phase, now, until, every time.Duration, r *rand.Rand) (wanted int) {
	begin := now
	for now < until {
		if p.wanted(now) {
			p.look(now, k.count(now))
		}
		if now >= begin {
			begin = p.after(now) + afterBegin
		}
		next := min(begin, now+every)
		if n := p.next(now); n > 0 && max(n, now+finest) < next {
			next = max(n, now+finest)
			wanted++
		}
		now = next + time.Duration(r.Int64N(int64(60*time.Microsecond)))
	}
	return wanted
}

// off returns the error of the learnt beginning.
func (k *kernel) off(p *phase) time.Duration {
	d := (p.after(0) - k.first) % k.period
	if d < 0 {
		d += k.period
	}
	return min(d, k.period-d)
}

var (
	periods = []time.Duration{10 * ms, 50 * ms, 100 * ms, 200 * ms, 500 * ms, time.Second}
	// pulses are the intervals at which a balance in debt asks for a look.
	pulses = []time.Duration{100 * ms, balance.Pulse}
)

// learnt returns the number of periods until the beginning is known.
const learnt = 10

// eachPeriod runs a test for all periods and pulses, many times.
func eachPeriod(t *testing.T, run func(t *testing.T, period, pulse time.Duration, r *rand.Rand)) {
	for _, period := range periods {
		for _, pulse := range pulses {
			t.Run(period.String()+"/"+pulse.String(), func(t *testing.T) {
				for seed := range uint64(50) {
					run(t, period, pulse, rand.New(rand.NewPCG(seed, 3)))
				}
			})
		}
	}
}

func check(t *testing.T, when string, p *phase, k *kernel) {
	t.Helper()
	if !p.known() || k.off(p) > 2*precise {
		t.Errorf("%s: known %v, off by %v of %v", when, p.known(), k.off(p), k.period)
	}
}

func TestPhaseIsLearnt(t *testing.T) {
	eachPeriod(t, func(t *testing.T, period, pulse time.Duration, r *rand.Rand) {
		k := kernel{period: period, first: time.Duration(r.Int64N(int64(period)))}
		p := newPhase(period)
		now := time.Duration(r.Int64N(int64(time.Second)))
		end := now + learnt*period
		k.looks(&p, now, end, pulse, r)
		check(t, "at first", &p, &k)

		// Somebody changes the period and changes it back.
		now, end = end, end+checkPhase+2*learnt*period
		k.change(now, period, period/3)
		k.looks(&p, now, end, pulse, r)
		check(t, "moved", &p, &k)

		// A minute has six checks.
		now, end = end, end+time.Minute
		if wanted := k.looks(&p, now, end, pulse, r); wanted > 20 {
			t.Errorf("it wants %d looks in a minute", wanted)
		}
		check(t, "after a minute", &p, &k)
	})
}

// The period changes, and the kernel's timer is late at first.
func TestPhaseIsLearntWrongly(t *testing.T) {
	wrong := 0
	eachPeriod(t, func(t *testing.T, period, pulse time.Duration, r *rand.Rand) {
		k := kernel{period: periods[r.IntN(len(periods))]}
		now := time.Duration(r.Int64N(int64(time.Second)))
		k.change(now, period, 0)
		k.late, k.until = period/4+time.Duration(r.Int64N(int64(period/2))), now+(3+time.Duration(r.IntN(5)))*period
		p := newPhase(period)
		k.looks(&p, now, k.until, pulse, r)
		if p.known() && k.off(&p) > 2*precise {
			wrong++
		}
		k.looks(&p, k.until, k.until+checkSoon+2*learnt*period, pulse, r)
		check(t, "since the timer is in time", &p, &k)
	})
	if wrong == 0 {
		t.Error("nothing wrong was ever learnt")
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

// A group that stops running asks for no more looks, even if a check is due.
func TestPhaseOfAGroupThatStops(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 3))
	k := kernel{period: 100 * ms, first: 30 * ms}
	p := newPhase(k.period)
	k.looks(&p, 0, learnt*k.period, k.period, r)
	check(t, "at first", &p, &k)
	stopped := kernel{period: time.Hour, first: time.Hour, before: k.count(learnt * k.period)}
	if wanted := stopped.looks(&p, learnt*k.period, time.Minute, k.period, r); wanted > 3 {
		t.Errorf("it wants %d looks in a minute", wanted)
	}
}
