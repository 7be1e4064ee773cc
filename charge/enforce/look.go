package enforce

import (
	"time"

	"github.com/tsugiki/tsugiki/charge/balance"
	"github.com/tsugiki/tsugiki/charge/bandwidth"
)

// look brings an account up to date, and does what follows from that.
func (a *Account) look(now time.Duration) error {
	rest := a.balance.Rest()
	a.asleep.Store(false)
	idle := rest && a.idle()
	if idle && now < a.last+checkAfter {
		a.rest(now)
		return nil
	}
	a.due = nextTick(now, restEvery) // should something fail
	boundary := !rest && now+early >= a.begin
	if err := a.learn(now); err != nil {
		return err
	}
	if err := a.recheck(now, idle && !a.pressed(now)); err != nil {
		return err
	}
	in, err := a.collect(now)
	if err != nil {
		return err
	}
	in.Boundary, in.Held = boundary, a.hold.on
	out := a.balance.Step(in)
	a.settle(out)
	if boundary && !a.easy || out.Easy {
		err = a.control(out)
	}
	if out.Hold {
		err = firstOf(err, a.freeze(now))
	} else {
		err = firstOf(err, a.release(now))
	}
	a.plan(now, out)
	return err
}

// recheck checks the limit, if that was some time ago. At rest nothing depends on it:
// there it is enough to know that the group is still there.
func (a *Account) recheck(now time.Duration, rest bool) error {
	switch age := now - a.checked; {
	case age < checkAfter:
		return nil
	case rest && age < trustLimit:
		if a.group.Gone() {
			return bandwidth.ErrGone
		}
		return nil
	}
	return a.check(now)
}

// count brings the sums and the debt up to date, for the last time.
func (a *Account) count() {
	if in, err := a.collect(a.c.now()); err == nil {
		a.settle(a.balance.Step(in))
	}
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// idle tells whether nothing has run for the account that is to be paid for, so that
// its own time can wait.
func (a *Account) idle() bool {
	for _, x := range a.clocks {
		if x.placed {
			continue
		}
		if t, err := x.clock.Elapsed(); err != nil || t != x.last {
			return false
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.charges) == 0
}

// rest says when to look next at an account at rest: soon, unless what has to be seen
// rouses it.
func (a *Account) rest(now time.Duration) {
	a.due = nextTick(now+early, restEvery)
	for _, x := range a.clocks {
		if x.placed {
			continue
		}
		if w, wakes := x.clock.(Waker); !wakes || w.Wake(wakeAfter, a.rouse) != nil {
			return
		}
	}
	a.asleep.Store(true)
	a.mu.Lock()
	charged := len(a.charges) > 0
	a.mu.Unlock()
	if charged { // before it slept
		a.rouse()
		return
	}
	a.due = nextTick(now+early, checkEvery)
}

// learn follows the kernel's periods while quotas are written at their begin.
func (a *Account) learn(now time.Duration) error {
	if a.balance.Rest() || a.easy || a.hold.on || !a.limits.writes(now) || !a.phase.wanted(now) {
		return nil
	}
	t, err := a.group.Throttled()
	if err != nil {
		return err
	}
	a.phase.look(a.c.now(), t.Periods)
	return nil
}

// warnEvery is how often it is logged that a container does not pay for all.
const warnEvery = time.Minute

// settle writes down what the step has decided.
func (a *Account) settle(out balance.Output) {
	a.entry.SetDebt(a.balance.Debt())
	if out.Forgiven > 0 {
		a.entry.AddForgiven(out.Forgiven)
		if now := a.c.now(); now >= a.warn {
			a.warn = now + warnEvery
			a.c.cfg.Log.Warn("a container owes too much", "container", a.name, "forgiven", a.entry.Forgiven())
		}
	}
}

// plan says when to look next.
func (a *Account) plan(now time.Duration, out balance.Output) {
	rest := a.balance.Rest()
	a.keepReady(!rest)
	if rest {
		a.begin = 0
		a.rest(now)
		return
	}
	if a.easy = out.Easy && a.limits.written.Quota == out.Quota; a.easy && a.phase.period >= restEvery {
		a.begin = nextTick(now+early, restEvery)
	} else if now+early >= a.begin {
		a.begin = a.gather(a.phase.after(now) + afterBegin)
		// Woken a little early, this period's has just been looked at.
		if a.begin <= now+early {
			a.begin += a.phase.period
		}
	}
	if a.hold.on { // until it goes on, periods are of no use to it
		a.due = a.gather(now + out.Next)
		return
	}
	a.due = a.begin
	if out.Next > 0 {
		a.due = min(a.due, a.gather(now+out.Next))
	}
	a.phase.enough = a.c.gathering() * 5 / 4 // a look at each, which come a little late
	if next := a.phase.next(now); next > 0 && !a.easy && a.limits.writes(now) {
		next = max(next, now+finest)
		if a.phase.enough > precise && !a.phase.known() {
			next = a.gather(next)
		}
		a.due = min(a.due, next)
	}
}

// keepReady has what looks need stay open and allocated, or gives it back: most
// containers are at rest most of the time.
func (a *Account) keepReady(keep bool) {
	_ = a.group.Keep(keep)
	if keep {
		return
	}
	if !a.hold.on {
		a.closeFreezer()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.charges) == 0 {
		a.charges = nil
	}
}

// gathering is by how much looks are put off so that several accounts are looked at
// together, the more of them there are: waking up costs more than a look.
func (c *Controller) gathering() time.Duration {
	return min(time.Duration(len(c.accounts))*gatherEach, gatherMost)
}

// gather puts off a time by that. What a container gets too much by a quota that is
// written late, or before it is held, is taken from the next.
func (a *Account) gather(t time.Duration) time.Duration {
	if every := a.c.gathering(); every > 0 {
		return nextTick(t, every)
	}
	return t
}
