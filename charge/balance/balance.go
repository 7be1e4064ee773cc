// Package balance decides how much of its CPU quota a container may still use when others spend CPU
// time for it. It is arithmetic: no input or output, no clock, no cgroup. It runs anywhere.
//
// Theory of operation. A container has a balance. The balance rises by the quota in each period. It
// falls by the CPU time that the container used (own) and that others used for it (borrowed). At
// the beginning of a period the balance is the CPU time that the container and its helpers together
// may use in that period. The container's quota becomes its own usual share of that. Helpers do not
// run under the quota. If a container needs little CPU time itself and makes others work much (yes
// | logger), no quota is low enough. So a container with a balance below zero is held (frozen)
// until the balance reaches the amount earned in one Pulse.
//
// A hold ends after HoldLimit. Debt that no hold can pay is carried. While a container carries
// debt, half of its earnings pay for it: the container runs at half its quota or more for as long
// as that takes. Carried debt above a limit is forgiven.
//
// A balance is at rest if nothing was charged to it lately. The kernel alone keeps such a container
// to its quota, so its own use does not lower the balance.
package balance

import (
	"math"
	"time"
)

const (
	// Pulse is the time between two looks at a container that is held or soon may be.
	Pulse = 10 * time.Millisecond
	// HoldLimit is the longest hold, plus up to one Pulse.
	//
	// A frozen container's helpers do not stop at once: they still read the data that the container
	// has written into pipes. A logger that takes 3 us for a line of two bytes works 0.1 s on a
	// pipe of 64 KiB. It works 0.2 s if a shim copies that pipe into another one. With a quota of a
	// tenth of a CPU, a container takes 2 s to pay for that. A container that itself needs almost
	// no CPU time would never pay for more than a hold covers.
	HoldLimit = 3 * time.Second
	// MinQuota is the smallest quota that the kernel accepts.
	MinQuota = time.Millisecond
	// Tolerance is the error in the CPU time of container and helpers together up to which the
	// quota is not rewritten.
	Tolerance = MinQuota / 2

	longest   = 100 * time.Millisecond // between looks, even if a period lasts a second
	longestIn = 900 * time.Millisecond // between looks at a held container, which does not run
	weight    = 0.3                    // of the last period in the usual values
	restAfter = 10                     // periods with negligible charges, after which the balance is at rest
	headroom  = 0.1                    // of a quota: what an idle container may save above one quota
)

// Limit is the container's own CPU limit: Quota per Period, and up to Burst of unused earlier
// quota. A negative quota means no quota.
type Limit struct {
	Quota, Period, Burst time.Duration
}

// Input has the CPU times since the step before.
type Input struct {
	Elapsed  time.Duration
	Own      time.Duration
	Borrowed time.Duration
	Credit   time.Duration // the part of Own that was other containers' work
	Boundary bool          // a period has just begun
	Held     bool          // the container was held the whole time
}

// Output is the decision of a step.
type Output struct {
	// Quota is the quota to set. Negative: none. It is above the container's limit if the kernel
	// bills other containers' work to this one.
	Quota   time.Duration
	Hold    bool
	Protect bool // the container has no debt, and may have a burst
	Easy    bool // the container leaves part of its quota: looks need not be on time
	// Next is the time until the next look. A container that is not held is also looked at when a
	// period begins. 0: only then.
	Next     time.Duration
	Forgiven time.Duration // debt that this step forgave
}

// Balance is the state of one container. Make it with New: the zero value is not usable.
type Balance struct {
	limit     Limit
	debtLimit int // in quotas

	b       float64 // the balance, nanoseconds
	carried float64
	pending float64 // charged at rest
	rest    bool
	calm    int // periods in a row with negligible charges

	own, borrowed, credit   float64 // in this period
	elapsed                 float64 // time since the period began, nanoseconds
	usualOwn, usualBorrowed float64 // per period
	usualCredit             float64
	quota, raise            time.Duration // raise is added to quota
	hold                    bool
	held                    time.Duration // how long the present hold has lasted
}

// New returns the balance of a container without debt. Carried debt above debtLimit quotas is
// forgiven.
func New(l Limit, debtLimit int) *Balance {
	b := &Balance{debtLimit: debtLimit, rest: true, b: float64(max(0, l.Quota))}
	b.SetLimit(l)
	return b
}

// SetLimit sets the container's limit, after its quota file was set to that limit. The debt stays.
func (b *Balance) SetLimit(l Limit) {
	b.limit = l
	b.quota = l.Quota
	if l.Quota < 0 {
		b.b, b.carried, b.pending, b.rest, b.hold, b.held, b.raise = 0, 0, 0, true, false, 0, 0
		return
	}
	b.b = min(b.b, b.most())
}

// SetBurst sets how much unused quota the container can save for later.
func (b *Balance) SetBurst(d time.Duration) { b.limit.Burst = d }

// Owe adds an old debt. The debt is carried: the container is not held for it.
func (b *Balance) Owe(d time.Duration) {
	if b.limit.Quota >= 0 && d > 0 {
		b.carried += float64(d)
		b.rest = false
	}
}

// Debt returns the CPU time that the container has not paid for yet. It includes Carried.
func (b *Balance) Debt() time.Duration {
	return time.Duration(max(0, -b.b) + b.carried + max(0, b.pending))
}

// Carried returns the part of the debt that the container pays by running at a lower quota.
func (b *Balance) Carried() time.Duration { return time.Duration(b.carried) }

// Rest tells whether nothing was charged lately. A container at rest needs only a rare look.
func (b *Balance) Rest() bool { return b.rest }

// Bound returns the longest possible hold, if all looks are in time.
func Bound() time.Duration { return HoldLimit + Pulse }

// most returns the highest balance: the CPU time that the kernel lets a container save, and a
// little more.
func (b *Balance) most() float64 {
	quota := float64(b.limit.Quota)
	return quota + max(headroom, float64(Pulse)/float64(b.limit.Period))*quota + float64(b.limit.Burst)
}

// rate returns the earnings per nanosecond, without the part that pays for carried debt.
func (b *Balance) rate() float64 {
	r := float64(b.limit.Quota) / float64(b.limit.Period)
	if b.carried > 0 {
		r /= 2
	}
	return r
}

// Step accounts for the CPU times since the last step, and decides.
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

// coming returns the CPU time that the container and its helpers can still use in this period, if
// the helpers work for it as much as usual. The kernel gives the container no more than the rest of
// its quota. If the result is less than a helper's work between two looks, more looks are of no
// use.
func (b *Balance) coming() float64 {
	left := float64(b.quota+b.raise+b.limit.Burst) - b.own
	switch {
	case left <= 0:
		return 0
	case b.usualOwn == 0:
		return math.Inf(1) // there are no usual values yet
	}
	return left * (1 + b.usualBorrowed/b.usualOwn)
}

// next returns the time until a look at the container. It is half the time until the container must
// be held if it goes on like this, or the time until a hold ends.
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

// threshold returns the charge above which a balance is not at rest any more.
func (b *Balance) threshold() float64 {
	return min(float64(Tolerance), float64(b.limit.Quota)/100)
}

// wake does a step of a balance at rest, and tells whether the rest has ended.
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

// release returns the balance at which a hold ends.
func (b *Balance) release() float64 { return b.rate() * float64(Pulse) }

// floor returns the lowest balance from which a hold can still end in time.
func (b *Balance) floor() float64 {
	return b.release() - b.rate()*float64(Bound()-b.held)
}

// carry moves the debt that no hold can pay to carried, and returns the forgiven debt.
func (b *Balance) carry() time.Duration {
	// Two passes, because a container with carried debt earns less, which raises the floor.
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

// repay raises the quota by the CPU time per period that the kernel usually bills to the container
// for others' work. The result is at most twice the container's quota.
func (b *Balance) repay() {
	b.usualCredit += weight * (b.credit - b.usualCredit)
	raise := min(time.Duration(b.usualCredit), b.limit.Quota).Truncate(time.Microsecond)
	if raise < Tolerance/2 {
		b.raise = 0
	} else if (raise - b.raise).Abs() >= Tolerance/2 {
		b.raise = raise
	}
}

// worked returns the part of this period's charges that predicts the next period. It is at most the
// CPU time that one helper can use on one CPU in that time, or the container's whole quota if that
// is more. A charge above that was for older work. The container owes it, but the next period need
// not bring as much.
func (b *Balance) worked() float64 {
	return min(max(0, b.borrowed), max(b.elapsed, float64(b.limit.Quota)))
}

// period decides the quota of the period that begins.
func (b *Balance) period() {
	full := b.limit.Quota
	share := 1.0
	if borrowed := b.worked(); b.own+borrowed > 0 {
		w := weight
		if b.usualOwn+b.usualBorrowed == 0 {
			w = 1 // there are no usual values yet
		}
		b.usualOwn += w * (b.own - b.usualOwn)
		b.usualBorrowed += w * (borrowed - b.usualBorrowed)
	}
	if b.calm >= restAfter && !b.hold && b.carried == 0 {
		b.usualBorrowed = 0 // nothing else lowers it for a container that does nothing
	}
	// A container that, with its helpers, leaves half of its quota gets the whole quota: it may
	// need it at any time. If its helpers work too much then, later periods pay for that.
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

// near tells whether the balance is less than headroom below one quota. So little is taken when the
// next charge arrives, and not now. A quota that is written late in a period gives the container
// the used part of the period twice. Taking that back at once would never end.
func (b *Balance) near() bool { return b.b >= (1-headroom)*float64(b.limit.Quota) }
