// Package balance decides what a container may still use of its CPU quota when
// others spend CPU time for it. It is arithmetic: no input or output, no clock, no
// cgroup; it runs anywhere.
//
// Theory of operation. A container has a balance, which rises by the quota in each
// period and falls by what the container used (own) and by what others used for it
// (borrowed). At the beginning of a period the balance is what both together may use
// in it: the container's quota is made its own usual part of that. Helpers are not
// under the quota, and with a container that needs little itself and makes others
// work much (yes | logger) no quota is low enough. So a container whose balance is
// below zero is held (frozen) until it is above zero by what it earns in a Pulse.
//
// A hold ends after HoldLimit. What it cannot pay for is carried, and while something
// is carried half of what is earned goes there: the container runs at no less than
// half its quota for as long as it takes, rather than not at all. Of what is carried,
// all above a limit is forgiven.
//
// A balance at rest is one to which nothing was charged lately. The kernel by itself
// keeps such a container to its quota, so its own use does not lower the balance.
package balance

import (
	"math"
	"time"
)

const (
	// Pulse is how often to look at a container that is held or soon may be.
	Pulse = 10 * time.Millisecond
	// HoldLimit is how long a container is held at most, but for a Pulse.
	//
	// Freezing a container does not stop its helpers at once: what it has written
	// waits for them in pipes. A logger that takes 3 us for a line of two bytes works
	// for 0.1 s on a pipe of 64 KiB, and so for 0.2 s on that of a container whose shim
	// copies it into another. With a quota of a tenth of a CPU it takes 2 s to pay for
	// that, and what a hold is too short for is never paid by one that needs next to
	// no CPU itself.
	HoldLimit = 3 * time.Second
	// MinQuota is the smallest quota that the kernel takes.
	MinQuota = time.Millisecond
	// Tolerance is how far what container and helpers together get may be from the
	// right amount without the quota being written.
	Tolerance = MinQuota / 2

	longest   = 100 * time.Millisecond // between looks, for a period may last a second
	longestIn = 900 * time.Millisecond // between looks at one that is held: it does not run
	weight    = 0.3                    // of the last period in the usual parts
	restAfter = 10                     // periods in which nothing worth mentioning was charged
	headroom  = 0.1                    // of a quota, which an idle container has above one
)

// Limit is what the container may use by itself: Quota per Period, and up to Burst
// of what it left unused. A negative quota is none.
type Limit struct {
	Quota, Period, Burst time.Duration
}

// Input is what happened since the step before.
type Input struct {
	Elapsed  time.Duration
	Own      time.Duration
	Borrowed time.Duration
	Credit   time.Duration // of Own, what the kernel billed to it that was another's
	Boundary bool          // a period has just begun
	Held     bool          // the container was held all the time
}

// Output is what to do now.
type Output struct {
	// Quota is what the container should have now; negative: none. It is more than its
	// limit as far as the kernel takes from it what is another's.
	Quota    time.Duration
	Hold     bool
	Protect  bool          // it owes nothing: it may have burst
	Easy     bool          // it leaves some of its quota: when exactly a look comes does not matter
	Next     time.Duration // look again by then, and at the beginning of a period, unless it is held; 0: only then
	Forgiven time.Duration // by this step
}

// Balance is the state of one container. Its zero value is of no use: see New.
type Balance struct {
	limit     Limit
	debtLimit int // quotas

	b       float64 // the balance, nanoseconds
	carried float64
	pending float64 // charged at rest
	rest    bool
	calm    int // periods without charges worth mentioning

	own, borrowed, credit   float64 // in this period
	elapsed                 float64 // how long this period is by now, nanoseconds
	usualOwn, usualBorrowed float64 // per period
	usualCredit             float64
	quota, raise            time.Duration // raise comes on top of the quota
	hold                    bool
	held                    time.Duration // how long by now
}

// New is the balance of a container that owes nothing. Of a debt more than debtLimit
// quotas are forgiven.
func New(l Limit, debtLimit int) *Balance {
	b := &Balance{debtLimit: debtLimit, rest: true, b: float64(max(0, l.Quota))}
	b.SetLimit(l)
	return b
}

// SetLimit says that the container has another limit now, and that as its quota.
// What it owes stays.
func (b *Balance) SetLimit(l Limit) {
	b.limit = l
	b.quota = l.Quota
	if l.Quota < 0 {
		b.b, b.carried, b.pending, b.rest, b.hold, b.held, b.raise = 0, 0, 0, true, false, 0, 0
		return
	}
	b.b = min(b.b, b.most())
}

// SetBurst says how much of what it leaves unused the container can use later.
func (b *Balance) SetBurst(d time.Duration) { b.limit.Burst = d }

// Owe charges a debt of former times. It is carried: nobody is held for it.
func (b *Balance) Owe(d time.Duration) {
	if b.limit.Quota >= 0 && d > 0 {
		b.carried += float64(d)
		b.rest = false
	}
}

// Debt is what the container has yet to pay for; what is carried is a part of it.
func (b *Balance) Debt() time.Duration {
	return time.Duration(max(0, -b.b) + b.carried + max(0, b.pending))
}

// Carried is the part of the debt that is paid by running at a lower quota.
func (b *Balance) Carried() time.Duration { return time.Duration(b.carried) }

// Rest tells whether nothing was charged lately, and nothing is to be done but to
// look now and then.
func (b *Balance) Rest() bool { return b.rest }

// Bound is how long a container may be held at most, if it is looked at in time.
func Bound() time.Duration { return HoldLimit + Pulse }

// most is the highest balance: what the kernel lets a container save, and a little.
func (b *Balance) most() float64 {
	quota := float64(b.limit.Quota)
	return quota + max(headroom, float64(Pulse)/float64(b.limit.Period))*quota + float64(b.limit.Burst)
}

// rate is what is earned and not at once used to pay what is carried, per nanosecond.
func (b *Balance) rate() float64 {
	r := float64(b.limit.Quota) / float64(b.limit.Period)
	if b.carried > 0 {
		r /= 2
	}
	return r
}

// Step accounts for what happened and says what to do.
func (b *Balance) Step(in Input) Output {
	if b.limit.Quota < 0 {
		return Output{Quota: b.limit.Quota}
	}
	if b.hold && in.Held {
		b.held += in.Elapsed
	}
	in.Own = max(0, in.Own-in.Credit)
	b.credit += float64(in.Credit)
	if !b.rest {
		b.earn(in)
	} else if !b.wake(in) {
		return Output{Quota: b.quota, Protect: true, Easy: true}
	}
	forgiven := b.carry()
	b.decideHold()
	if in.Boundary {
		b.period()
	}
	out := Output{
		Quota: b.quota + b.raise, Hold: b.hold, Forgiven: forgiven,
		Protect: b.quota == b.limit.Quota && b.b >= 0 && b.carried == 0,
	}
	out.Easy = out.Protect && b.raise == 0 && b.b >= float64(b.limit.Quota)
	if b.hold || b.b < float64(b.limit.Quota)/2 && b.coming() > float64(Pulse) || b.limit.Period > longest && !out.Easy {
		out.Next = b.next(in)
	}
	return out
}

// coming is what the container and its helpers still use in this period, if the helpers work
// for it as usual: the kernel gives it no more than what is left of its quota. Where that is
// less than a helper can do between two looks, looks in between are of no use.
func (b *Balance) coming() float64 {
	left := float64(b.quota+b.raise+b.limit.Burst) - b.own
	switch {
	case left <= 0:
		return 0
	case b.usualOwn == 0:
		return math.Inf(1) // nothing is usual yet
	}
	return left * (1 + b.usualBorrowed/b.usualOwn)
}

// next is when the container may have to be held, or need not be any more, if it goes
// on like this: half of the way to it, when that is not too near.
func (b *Balance) next(in Input) time.Duration {
	wait := float64(b.limit.Period)
	if b.hold {
		wait = max((b.release()-b.b)/b.rate(), float64(Pulse))
		return min(time.Duration(wait), Bound()-b.held, longestIn)
	}
	if in.Elapsed > 0 {
		used := max(float64(in.Own+in.Borrowed)/float64(in.Elapsed), (b.usualOwn+b.usualBorrowed)/float64(b.limit.Period))
		if drain := used - b.rate(); drain > 0 {
			wait = b.b / drain / 2
		}
	}
	return min(max(time.Duration(wait), Pulse), longest, b.limit.Period)
}

// threshold is what may be charged before a balance at rest is looked at closely.
func (b *Balance) threshold() float64 {
	return min(float64(Tolerance), float64(b.limit.Quota)/100)
}

// wake does a step at rest, and tells whether rest has ended.
func (b *Balance) wake(in Input) bool {
	quota := float64(b.limit.Quota)
	b.pending = max(b.pending+float64(in.Borrowed), -headroom*quota)
	saved := b.b + b.rate()*float64(in.Elapsed) - float64(in.Own)
	b.b = min(max(saved, min(b.b, quota)), b.most())
	credit := b.credit * float64(b.limit.Period) / float64(max(in.Elapsed, b.limit.Period))
	if b.pending < b.threshold() && credit < b.threshold() {
		b.credit = 0
		return false
	}
	b.rest, b.calm, b.credit = false, 0, credit
	b.b -= max(0, b.pending)
	b.pending = 0
	b.own, b.borrowed, b.elapsed = float64(in.Own), float64(in.Borrowed), float64(in.Elapsed)
	b.usualOwn, b.usualBorrowed, b.usualCredit = 0, 0, 0
	return true
}

// earn does a step of a balance that is not at rest.
func (b *Balance) earn(in Input) {
	b.own += float64(in.Own)
	b.borrowed += float64(in.Borrowed)
	b.elapsed += float64(in.Elapsed)
	earned := float64(b.limit.Quota) / float64(b.limit.Period) * float64(in.Elapsed)
	pay := min(earned/2, b.carried)
	b.carried -= pay
	b.b += earned - pay - float64(in.Own) - float64(in.Borrowed)
	if over := b.b - b.most(); over > 0 {
		b.b -= over
		b.carried = max(0, b.carried-over)
	}
}

// release is the balance from which on a container is not held any more.
func (b *Balance) release() float64 { return b.rate() * float64(Pulse) }

// floor is the balance from which the container gets out of a hold in time.
func (b *Balance) floor() float64 {
	return b.release() - b.rate()*float64(Bound()-b.held)
}

// carry moves what no hold can pay for, and returns what is forgiven.
func (b *Balance) carry() time.Duration {
	// Twice, because with something to carry less is earned.
	for range 2 {
		if excess := b.floor() - b.b; excess > 0 {
			b.b += excess
			b.carried += excess
		}
	}
	forgiven := max(0, b.carried-float64(b.debtLimit)*float64(b.limit.Quota))
	b.carried -= forgiven
	return time.Duration(forgiven)
}

func (b *Balance) decideHold() {
	switch {
	case b.hold && b.b >= b.release():
		b.hold, b.held = false, 0
	case !b.hold && b.b < 0:
		b.hold = true
	}
}

// repay raises the quota by what of it the kernel usually takes for others: at most to
// twice the container's own.
func (b *Balance) repay() {
	b.usualCredit += weight * (b.credit - b.usualCredit)
	raise := min(time.Duration(b.usualCredit), b.limit.Quota).Truncate(time.Microsecond)
	if raise < Tolerance/2 {
		b.raise = 0
	} else if (raise - b.raise).Abs() >= Tolerance/2 {
		b.raise = raise
	}
}

// worked is what was charged in this period, as far as it tells what is usual: no more
// than a helper can do in that time on one CPU, or than the container's whole quota. What
// is above was charged at once for work of another time. It is owed, and no reason to
// expect as much in the next period.
func (b *Balance) worked() float64 {
	return min(max(0, b.borrowed), max(b.elapsed, float64(b.limit.Quota)))
}

// period decides on the quota of the period that begins.
func (b *Balance) period() {
	full := b.limit.Quota
	share := 1.0
	if borrowed := b.worked(); b.own+borrowed > 0 {
		w := weight
		if b.usualOwn+b.usualBorrowed == 0 {
			w = 1 // there is nothing usual yet
		}
		b.usualOwn += w * (b.own - b.usualOwn)
		b.usualBorrowed += w * (borrowed - b.usualBorrowed)
	}
	if b.calm >= restAfter && !b.hold && b.carried == 0 {
		b.usualBorrowed = 0 // of one that does nothing, nothing else would tell
	}
	// One that together with its helpers leaves half of its quota may need it at any
	// time; if its helpers do too then, that is taken from the periods after.
	if sum := b.usualOwn + b.usualBorrowed; sum > 0 && (sum > float64(full)/2 || b.b < float64(full)) {
		share = b.usualOwn / sum
	}
	want := min(max(time.Duration(b.b*share), MinQuota), full).Truncate(time.Microsecond)
	if b.usualBorrowed < b.threshold() && b.near() {
		want = full
	}
	if want == full || float64((want-b.quota).Abs()) > share*float64(Tolerance) {
		b.quota = want
	}
	b.repay()
	b.calm++
	if b.borrowed > float64(full)/200 || b.raise > 0 {
		b.calm = 0
	}
	b.own, b.borrowed, b.credit, b.elapsed = 0, 0, 0, 0
	if b.calm >= restAfter && !b.hold && b.carried == 0 && b.quota == full && b.near() {
		b.rest = true
	}
}

// near tells whether what is missing of a quota is so little that it is taken from the
// container when something is charged again: a quota that is written late in a period
// gives what was used of the period twice, so that to take that back at once would
// never end.
func (b *Balance) near() bool { return b.b >= (1-headroom)*float64(b.limit.Quota) }
