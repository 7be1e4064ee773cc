package enforce

import "time"

const (
	restEvery   = 100 * time.Millisecond // accounts at rest, of which something is to be seen
	checkEvery  = time.Second            // what is at rest,
	checkAfter  = checkEvery - restEvery // for one look may come late, and the next in time
	trustLimit  = 10 * time.Second       // of what is at rest and asked about by nobody
	wakeAfter   = time.Millisecond       // of a helper's time an account at rest is looked at
	afterBegin  = 300 * time.Microsecond // looks come this long after a period's begin
	early       = 150 * time.Microsecond // or by so much sooner, if there is something to do now
	gatherEach  = 200 * time.Microsecond // looks are put off by this at most, per account,
	gatherMost  = 20 * time.Millisecond  // and by this
	priority    = -10                    // nice
	longestWait = 10 * time.Second
)

// run looks at what is due until Close.
func (c *Controller) run() {
	defer close(c.ended)
	for c.pass() {
		c.clock.wait()
	}
}

// pass looks at every account that is due, and sets the clock for the next one. It
// tells whether there will be a next one.
func (c *Controller) pass() bool {
	gone, closed := c.lookAtDue()
	for _, a := range gone {
		if c.cfg.Gone != nil {
			c.cfg.Gone(a)
		}
	}
	return !closed
}

func (c *Controller) lookAtDue() (gone []*Account, closed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, true
	}
	now := c.now()
	c.dueRoused()
	next := now + longestWait
	for _, a := range c.accounts {
		if a.due <= now+early {
			if err := a.look(c.now()); isGone(err) {
				gone = append(gone, a)
				continue
			} else if err != nil {
				a.complain(err)
				_ = a.release(c.now()) // who cannot see must not hold
			}
		}
		next = min(next, a.due)
	}
	for _, a := range gone {
		c.drop(a)
		a.bury()
	}
	c.sleepUntil(next)
	return gone, false
}

// sleepUntil has the loop go on then, or sooner for whom is roused by now.
func (c *Controller) sleepUntil(t time.Duration) {
	c.sleep.Lock()
	defer c.sleep.Unlock()
	for _, r := range c.roused {
		t = min(t, r.due)
	}
	c.setAlarm(t)
}

// wakeBy has the loop go on no later than then.
func (c *Controller) wakeBy(t time.Duration) {
	c.sleep.Lock()
	defer c.sleep.Unlock()
	if t < c.alarm {
		c.setAlarm(t)
	}
}

// setAlarm is called with sleep held.
func (c *Controller) setAlarm(t time.Duration) {
	c.alarm = t
	c.clock.set(t)
}

// roused is an account that is to be looked at.
type roused struct {
	*Account
	due time.Duration
}

// rouse has an account looked at at the next tick of those at rest, if it sleeps. It
// takes neither the controller's mutex nor the account's.
func (a *Account) rouse() {
	if !a.asleep.Swap(false) {
		return
	}
	a.lookBy(nextTick(a.c.now(), restEvery))
}

// lookBy has an account looked at no later than then.
func (a *Account) lookBy(t time.Duration) {
	a.c.sleep.Lock()
	a.c.roused = append(a.c.roused, roused{a, t})
	a.c.sleep.Unlock()
	a.c.wakeBy(t)
}

// dueRoused makes due who was roused.
func (c *Controller) dueRoused() {
	c.sleep.Lock()
	defer c.sleep.Unlock()
	for _, r := range c.roused {
		r.Account.due = min(r.Account.due, r.due)
	}
	clear(c.roused)
	c.roused = c.roused[:0]
}

// nextTick is the next common multiple of an interval.
func nextTick(now, every time.Duration) time.Duration {
	return now - now%every + every
}
