package enforce

import (
	"time"

	"github.com/tsugiki/tsugiki/charge/balance"
	"github.com/tsugiki/tsugiki/charge/bandwidth"
)

// look brings an account up to date, writes its quota, and holds or thaws the container.
func (a *Account) look(now time.Duration) error {
	rest := a.balance.Rest()
	a.asleep.Store(false)
	idle := rest && a.idle()
	if idle && now < a.last+checkAfter {
		a.rest(now)
		return nil
	}
	a.due = nextTick(now, restEvery) // used if a step below fails
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

// recheck reads the limit again if the last reading is old. For an account at rest nothing depends
// on the limit: it is enough to know that the group still exists.
func (a *Account) recheck(now time.Duration, rest bool) error {
	l := &a.limits
	switch age := now - a.checked; {
	case age < checkAfter:
		return nil
	case l.reason != "" && l.written != l.original:
		return a.restoreAgain()
	case rest && age < trustLimit:
		if a.group.Gone() {
			return bandwidth.ErrGone
		}
		return nil
	}
	return a.check(now)
}

// restoreAgain restores a limit that the kernel refused to restore. In v1, a group above may have
// had a lower quota then. The times are collected even if the kernel refuses again.
func (a *Account) restoreAgain() error {
	err := a.putBack()
	if err == nil || isGone(err) {
		return err
	}
	a.complain(err)
	return nil
}

// count updates the sums and the debt for the last time.
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

// idle tells whether no helper has run for the account since the last look. The usage of the
// container itself can then be read later.
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

// rest sets the next look at an account at rest. That is soon, unless a charge and every clock will
// rouse the account.
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
	if charged { // the charge came before asleep was set, and did not rouse the account
		a.rouse()
		return
	}
	a.due = nextTick(now+early, checkEvery)
}

// learn follows the kernel's periods while quotas are written at their beginning.
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

// warnEvery is the shortest time between two log lines about a container's forgiven debt.
const warnEvery = time.Minute

// settle records the debt and the forgiven debt of a step.
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

// plan sets the time of the next look.
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
		// The loop woke a little early, and this look was the one for that period.
		if a.begin <= now+early {
			a.begin += a.phase.period
		}
	}
	if a.hold.on { // a held container does not run, so its periods do not matter
		a.due = a.gather(now + out.Next)
		return
	}
	a.due = a.begin
	if out.Next > 0 {
		a.due = min(a.due, a.gather(now+out.Next))
	}
	a.phase.enough = a.c.gathering() * 5 / 4 // the time between grouped looks, which come a little late
	if next := a.phase.next(now); next > 0 && !a.easy && a.limits.writes(now) {
		next = max(next, now+finest)
		if a.phase.enough > precise && !a.phase.known() {
			next = a.gather(next)
		}
		a.due = min(a.due, next)
	}
}

// keepReady keeps the files open and the charges allocated that looks need, or frees them. Most
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

// gathering is the time by which looks are delayed at most, so that several accounts are looked at
// together. It grows with the number of accounts, because waking the thread costs more than a look.
func (c *Controller) gathering() time.Duration {
	return min(time.Duration(len(c.accounts))*gatherEach, gatherMost)
}

// gather delays a time to the next multiple of gathering. A delayed quota or hold lets a container
// use too much CPU time. That time is taken from its next period.
func (a *Account) gather(t time.Duration) time.Duration {
	if every := a.c.gathering(); every > 0 {
		return nextTick(t, every)
	}
	return t
}
