package balance

import (
	"math/rand/v2"
	"testing"
	"time"
)

const ms = time.Millisecond

// machine simulates a container under the kernel's bandwidth control, and a helper that does the
// work that the container gives it.
type machine struct {
	balance *Balance
	limit   Limit
	cpus    int
	factor  float64 // helper's work per work of the container
	demand  func(now time.Duration) float64

	quota, runtime time.Duration // the kernel's
	burst          time.Duration
	backlog        time.Duration // for the helper
	hold           bool
	due            time.Duration
	last           time.Duration

	own, helper, ownSeen, helperSeen time.Duration
	heldSince, longest               time.Duration
	forgiven                         time.Duration
	charge                           time.Duration // to be charged at the next look
	pipe                             time.Duration
	late                             func() time.Duration // looks come by that much; nil: in time
	stolen                           float64              // part of its own time in which the kernel works for others
	credit                           time.Duration
}

const (
	tick  = 100 * time.Microsecond
	phase = 300 * time.Microsecond // after the boundary
	pipe  = 2 * ms                 // work that fits in between, unless said otherwise
)

func newMachine(l Limit, cpus int, factor float64) *machine {
	m := &machine{
		balance: New(l, 600), limit: l, cpus: cpus, factor: factor,
		quota: l.Quota, runtime: l.Quota, burst: l.Burst,
		demand: func(time.Duration) float64 { return float64(cpus) }, pipe: pipe,
	}
	m.due = l.Period + phase
	return m
}

func (m *machine) run(from, to time.Duration) {
	for now := from; now < to; now += tick {
		if now%m.limit.Period == 0 {
			m.runtime = min(max(0, m.runtime)+m.quota, m.quota+m.burst)
		}
		if now >= m.due {
			m.look(now)
		}
		m.work(now)
	}
}

func (m *machine) work(now time.Duration) {
	capacity := tick * time.Duration(m.cpus)
	helper := min(m.backlog, tick, capacity)
	m.helper += helper
	m.backlog -= helper
	if m.hold {
		return
	}
	own := min(capacity-helper, m.runtime, time.Duration(m.demand(now)*float64(tick)))
	if m.factor > 0 {
		own = min(own, time.Duration(float64(max(0, m.pipe-m.backlog))/m.factor))
	}
	m.own += own
	m.credit += time.Duration(float64(own) * m.stolen)
	m.runtime -= own
	m.backlog += time.Duration(float64(own) * m.factor)
}

func (m *machine) look(now time.Duration) {
	began := now - now%m.limit.Period + phase // of this period
	boundary := now >= began && m.last < began
	out := m.balance.Step(Input{
		Elapsed: now - m.last, Own: m.own - m.ownSeen, Borrowed: m.helper - m.helperSeen + m.charge,
		Credit: m.credit, Boundary: boundary, Held: m.hold,
	})
	m.credit = 0
	m.last, m.ownSeen, m.helperSeen, m.charge = now, m.own, m.helper, 0
	m.forgiven += out.Forgiven
	if out.Quota != m.quota {
		m.quota = out.Quota
		m.runtime = min(m.runtime+m.quota, m.quota+m.burst)
	}
	if out.Hold && !m.hold {
		m.heldSince = now
	}
	if !out.Hold && m.hold {
		m.longest = max(m.longest, now-m.heldSince)
	}
	m.hold = out.Hold
	m.due = began + m.limit.Period
	if out.Next > 0 {
		m.due = min(m.due, now+out.Next)
	}
	if m.late != nil {
		m.due += m.late()
	}
}

func TestSaturatingDemandGetsTheQuota(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		period := []time.Duration{100 * ms, 100 * ms, 50 * ms, 10 * ms, 250 * ms}[r.IntN(5)]
		cpus := 1 + r.IntN(4)
		l := Limit{Period: period, Quota: time.Duration((0.05 + 0.9*r.Float64()) * float64(period))}
		// With less, what one smallest quota makes a helper work is more than a quota.
		l.Quota = max(l.Quota, 4*ms, period*3/20).Truncate(time.Microsecond)
		// From a helper that hardly works to one that works a thousand times as much.
		factor := []float64{0.02, 0.1, 0.3, 1, 3, 30, 1000}[r.IntN(7)]
		if cpus > 1 && factor <= 1 && r.IntN(2) == 0 {
			l.Quota *= 2 // more than one CPU
		}
		m := newMachine(l, cpus, factor)
		m.run(0, 2*time.Second)
		own, helper := m.own, m.helper
		m.run(2*time.Second, 12*time.Second)
		used := m.own + m.helper - own - helper
		allowed := time.Duration(float64(10*time.Second) / float64(period) * float64(l.Quota))
		// A helper has one thread: it cannot use more than one CPU.
		most := time.Duration(float64(10*time.Second) * (1 + 1/factor))
		if off := float64(used-min(allowed, most)) / float64(10*time.Second); off > .01 || off < -.01 {
			t.Errorf("seed %d: quota %v of %v, %d CPUs, factor %g: used %v of %v (%+.2f %%)",
				seed, l.Quota, l.Period, cpus, factor, used, allowed, 100*off)
		}
		if m.longest > Bound() {
			t.Errorf("seed %d: held for %v", seed, m.longest)
		}
	}
}

// The helper does the work that waits in pipes while the container is held.
func TestDeepPipe(t *testing.T) {
	m := newMachine(Limit{Period: 100 * ms, Quota: 25 * ms}, 2, 1000)
	m.pipe = 300 * ms
	m.run(0, 5*time.Second)
	used := m.own + m.helper
	m.run(5*time.Second, 35*time.Second)
	// A pipe more or less.
	if share := float64(m.own+m.helper-used) / float64(30*time.Second); share < .24 || share > .26 {
		t.Errorf("container and helper had %.3f of a CPU", share)
	}
	if m.longest > Bound() {
		t.Errorf("held for %v", m.longest)
	}
}

// If the kernel works for others in a container's time, the container's quota is raised by as much.
func TestStolenTimeIsGivenBack(t *testing.T) {
	m := newMachine(Limit{Period: 100 * ms, Quota: 25 * ms}, 1, 0)
	m.stolen = 0.3
	m.run(0, 2*time.Second)
	own := m.own
	m.run(2*time.Second, 12*time.Second)
	if share := float64(m.own-own) * (1 - m.stolen) / float64(10*time.Second); share < .24 || share > .26 {
		t.Errorf("the container had %.3f of a CPU for itself", share)
	}
	m.stolen = 0
	m.run(12*time.Second, 16*time.Second)
	if m.quota != 25*ms || !m.balance.Rest() {
		t.Errorf("when nothing is stolen any more, its quota is %v, rest %v", m.quota, m.balance.Rest())
	}
}

// A container that is always busy comes to rest soon after its helper has ended, even if looks come
// late. (A quota that is written late in a period gives the container the used part of the period
// twice.)
func TestLateLooks(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 4))
		m := newMachine(Limit{Period: 100 * ms, Quota: 50 * ms}, 1, 0)
		m.late = func() time.Duration { return time.Duration(r.Int64N(int64(10 * ms))) }
		m.run(0, time.Second)
		m.charge = 40 * ms
		m.run(time.Second, 4*time.Second)
		if !m.balance.Rest() || m.quota != 50*ms {
			t.Errorf("seed %d: rest %v, the quota is %v", seed, m.balance.Rest(), m.quota)
		}
		// What was given twice is not forgotten.
		own := m.own
		m.charge = 40 * ms
		m.run(4*time.Second, 14*time.Second)
		if used := m.own - own + 40*ms; used > 5*time.Second+m.limit.Quota/4 {
			t.Errorf("seed %d: together %v in 10 s", seed, used)
		}
	}
}

func TestRandomLoadIsNeverHeldTooLong(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 2))
		l := Limit{Period: 100 * ms, Quota: time.Duration(5+r.IntN(150)) * ms}
		if r.IntN(2) == 0 {
			l.Burst = l.Quota
		}
		m := newMachine(l, 2, []float64{0, 0.1, 1, 30}[r.IntN(4)])
		want := make([]float64, 100)
		for i := range want {
			want[i] = 2 * r.Float64() * float64(r.IntN(2))
		}
		m.demand = func(now time.Duration) float64 { return want[now/(100*ms)%100] }
		var charged time.Duration
		for at := time.Duration(0); at < 10*time.Second; at += 50 * ms {
			m.run(at, at+50*ms)
			if r.IntN(4) == 0 {
				c := time.Duration(r.ExpFloat64() * float64(100*ms))
				m.charge += c
				charged += c
			}
		}
		if m.longest > Bound() {
			t.Errorf("seed %d: held for %v", seed, m.longest)
		}
		saved := l.Quota*3/2 + l.Burst
		if paid := m.own + m.helper + charged - m.charge - m.balance.Debt() - m.forgiven; paid > 100*l.Quota+saved {
			t.Errorf("seed %d: paid for %v in 100 periods of %v", seed, paid, l.Quota)
		}
	}
}

func TestOwnUseAloneIsLeftToTheKernel(t *testing.T) {
	m := newMachine(Limit{Period: 100 * ms, Quota: 30 * ms, Burst: 30 * ms}, 2, 0)
	m.demand = func(now time.Duration) float64 { return float64(now / time.Second % 2 * 2) }
	for at := time.Duration(0); at < 10*time.Second; at += 10 * ms {
		m.run(at, at+10*ms)
		if m.hold || m.quota != 30*ms || !m.balance.Rest() || m.balance.Debt() != 0 {
			t.Fatalf("at %v: hold %v, quota %v, debt %v", at, m.hold, m.quota, m.balance.Debt())
		}
	}
}

func TestHugeChargeIsPaidAtHalfTheQuota(t *testing.T) {
	m := newMachine(Limit{Period: 100 * ms, Quota: 50 * ms}, 1, 0)
	m.run(0, time.Second)
	m.charge = 5 * time.Second
	m.run(time.Second, 6*time.Second)
	if m.longest > Bound() || m.longest < HoldLimit*8/10 {
		t.Errorf("held for %v", m.longest)
	}
	own := m.own
	m.run(6*time.Second, 16*time.Second)
	if share := float64(m.own-own) / float64(10*time.Second); share < .24 || share > .26 {
		t.Errorf("the container had %.3f of a CPU while it paid", share)
	}
	m.run(16*time.Second, 24*time.Second)
	own = m.own
	m.run(24*time.Second, 34*time.Second)
	if share := float64(m.own-own) / float64(10*time.Second); share < .49 || share > .51 {
		t.Errorf("the container had %.3f of a CPU when it had paid", share)
	}
	if !m.balance.Rest() || m.balance.Debt() != 0 {
		t.Errorf("debt %v, rest %v", m.balance.Debt(), m.balance.Rest())
	}
}

func TestSteps(t *testing.T) {
	l := Limit{Period: 100 * ms, Quota: 50 * ms}
	tests := []struct {
		name          string
		limit         Limit
		steps         []Input
		want          Output
		debt, carried time.Duration
	}{
		{
			"nothing", l,
			[]Input{{Elapsed: 100 * ms, Boundary: true}},
			Output{Quota: 50 * ms, Protect: true, Easy: true},
			0, 0,
		},
		{
			"no quota, nothing to take from",
			Limit{Period: 100 * ms, Quota: -1},
			[]Input{{Elapsed: 100 * ms, Own: 100 * ms, Borrowed: time.Hour, Boundary: true}},
			Output{Quota: -1},
			0, 0,
		},
		{
			"a helper's tenth", l,
			[]Input{{Elapsed: 100 * ms, Own: 45 * ms, Borrowed: 5 * ms, Boundary: true}},
			Output{Quota: 45 * ms},
			0, 0,
		},
		{
			"owed, held", l,
			[]Input{{Elapsed: 100 * ms, Own: 50 * ms, Borrowed: 80 * ms, Boundary: true}},
			Output{Quota: 1 * ms, Hold: true, Next: 70 * ms},
			30 * ms, 0,
		},
		{
			"released", l,
			[]Input{
				{Elapsed: 100 * ms, Own: 50 * ms, Borrowed: 51 * ms, Boundary: true},
				{Elapsed: 10 * ms, Held: true},
				{Elapsed: 2 * ms, Held: true},
			},
			Output{Quota: 1 * ms},
			0, 0,
		},
		{
			"too much for a hold", l,
			[]Input{{Elapsed: 100 * ms, Own: 50 * ms, Borrowed: 2 * time.Second, Boundary: true}},
			Output{Quota: 1 * ms, Hold: true, Next: 900 * ms},
			1950 * ms, 1200 * ms,
		},
		{
			"more than is ever asked for", l,
			[]Input{{Elapsed: 100 * ms, Borrowed: time.Hour, Boundary: true}},
			Output{Quota: 1 * ms, Hold: true, Next: 900 * ms, Forgiven: time.Hour - 55*ms - 750*ms - 30*time.Second},
			30750 * ms, 30 * time.Second,
		},
		{
			"credit", l,
			[]Input{
				{Elapsed: 100 * ms, Own: 50 * ms, Borrowed: 20 * ms, Boundary: true},
				{Elapsed: 100 * ms, Own: 50 * ms, Credit: 20 * ms, Boundary: true},
			},
			Output{Quota: 43931 * time.Microsecond},
			0, 0,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := New(tt.limit, 600)
			var got Output
			for _, in := range tt.steps {
				got = b.Step(in)
			}
			if got != tt.want {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
			if b.Debt() != tt.debt || b.Carried() != tt.carried {
				t.Errorf("debt %v of which carried %v, want %v, %v", b.Debt(), b.Carried(), tt.debt, tt.carried)
			}
		})
	}
}

func TestOldDebtHoldsNobody(t *testing.T) {
	b := New(Limit{Period: 100 * ms, Quota: 50 * ms}, 600)
	b.Owe(time.Second)
	out := b.Step(Input{Elapsed: 100 * ms, Own: 50 * ms, Boundary: true})
	if out.Hold || b.Rest() || out.Quota != 25*ms {
		t.Errorf("%+v, rest %v", out, b.Rest())
	}
}

// A container that does nothing after its helper has used most of a period comes to rest, with its
// whole quota.
func TestIdleComesToRest(t *testing.T) {
	l := Limit{Quota: 20 * ms, Period: 100 * ms}
	b := New(l, 600)
	b.Step(Input{Elapsed: 100 * ms, Borrowed: 15 * ms})
	for range 3 * restAfter {
		b.Step(Input{Elapsed: 100 * ms, Boundary: true})
	}
	if out := b.Step(Input{Elapsed: 100 * ms}); !b.Rest() || out.Quota != l.Quota {
		t.Errorf("rest %v, quota %v", b.Rest(), out.Quota)
	}
}
