package enforce

import (
	"time"

	"github.com/tsugiki/tsugiki/charge/balance"
)

// look brings an account up to date, and does what follows from that.
func (a *Account) look(now time.Duration) error {
	rest := a.balance.Rest()
	if rest && a.idle() && now < a.checked+checkEvery {
		a.due = nextTick(now, restEvery)
		return nil
	}
	a.due = nextTick(now, restEvery) // should something fail
	boundary := !rest && now+early >= a.begin
	if err := a.learn(now); err != nil {
		return err
	}
	if now >= a.checked+checkEvery {
		if err := a.check(now); err != nil {
			return err
		}
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

// learn follows the kernel's periods while something may have to be done at their
// begin.
func (a *Account) learn(now time.Duration) error {
	if a.balance.Rest() || a.easy || a.phase.known() && now+a.phase.period < a.phase.check {
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
		a.forgiven += out.Forgiven
		a.entry.AddForgiven(out.Forgiven)
		if now := a.c.now(); now >= a.warn {
			a.warn = now + warnEvery
			a.c.cfg.Log.Warn("a container owes too much", "container", a.name, "forgiven", a.forgiven)
		}
	}
}

// plan says when to look next.
func (a *Account) plan(now time.Duration, out balance.Output) {
	if a.balance.Rest() {
		a.due, a.begin = nextTick(now, restEvery), 0
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
	a.due = a.begin
	if out.Next > 0 {
		a.due = min(a.due, nextTick(now+early, out.Next))
	}
	if next := a.phase.next(now); next > 0 {
		a.due = min(a.due, max(next, now+finest))
	}
}

// gather puts off a time so that several accounts are looked at together, the more of
// them there are: waking up costs more than a look. What a container gets too much by
// a quota that is written late is taken from the next.
func (a *Account) gather(t time.Duration) time.Duration {
	every := min(time.Duration(len(a.c.accounts))*gatherEach, gatherMost)
	if every == 0 {
		return t
	}
	return nextTick(t, every)
}
