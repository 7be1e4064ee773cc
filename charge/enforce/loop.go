package enforce

import "time"

const (
	restEvery   = 100 * time.Millisecond // between looks at accounts at rest whose clocks must be read
	checkEvery  = time.Second            // between looks at other accounts at rest
	checkAfter  = checkEvery - restEvery // the age of a look that is old: one may come late, and the next on time
	trustLimit  = 10 * time.Second       // how long the limit of an account at rest is trusted
	wakeAfter   = time.Millisecond       // of a helper's CPU time, after which its Waker rouses the account
	afterBegin  = 300 * time.Microsecond // from the beginning of a period to the look at it
	early       = 150 * time.Microsecond // how much too early a look may come
	gatherEach  = 200 * time.Microsecond // per account: looks are delayed by this at most
	gatherMost  = 20 * time.Millisecond  // for all accounts: looks are delayed by this at most
	priority    = -10                    // nice
	longestWait = 10 * time.Second
)

// run looks at due accounts until Close.
func (c *Controller) run() {
	defer close(c.ended)
	for c.pass() {
		c.clock.wait()
	}
}

// pass looks at every due account, and sets the clock for the next look. It returns false after
// Close.
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
				_ = a.release(c.now()) // an account that cannot read its group must not hold it
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

// sleepUntil sets the loop's next pass to the time t, or earlier if a roused account is due
// earlier.
func (c *Controller) sleepUntil(t time.Duration) {
	c.sleep.Lock()
	defer c.sleep.Unlock()
	for _, r := range c.roused {
		t = min(t, r.due)
	}
	c.setAlarm(t)
}

// wakeBy sets the loop's next pass to no later than the time t.
func (c *Controller) wakeBy(t time.Duration) {
	c.sleep.Lock()
	defer c.sleep.Unlock()
	if t < c.alarm {
		c.setAlarm(t)
	}
}

// setAlarm sets the loop's alarm. The caller holds sleep.
func (c *Controller) setAlarm(t time.Duration) {
	c.alarm = t
	c.clock.set(t)
}

// roused is an account that rouse or lookBy has made due.
type roused struct {
	*Account
	due time.Duration
}

// rouse makes a sleeping account due at the next multiple of restEvery. It takes neither the
// controller's mutex nor the account's.
func (a *Account) rouse() {
	if !a.asleep.Swap(false) {
		return
	}
	a.lookBy(nextTick(a.c.now(), restEvery))
}

// lookBy makes an account due no later than the time t.
func (a *Account) lookBy(t time.Duration) {
	a.c.sleep.Lock()
	a.c.roused = append(a.c.roused, roused{a, t})
	a.c.sleep.Unlock()
	a.c.wakeBy(t)
}

// dueRoused moves the roused accounts' times to the accounts themselves.
func (c *Controller) dueRoused() {
	c.sleep.Lock()
	defer c.sleep.Unlock()
	for _, r := range c.roused {
		r.Account.due = min(r.Account.due, r.due)
	}
	clear(c.roused)
	c.roused = c.roused[:0]
}

// nextTick returns the next multiple of every after now.
func nextTick(now, every time.Duration) time.Duration {
	return now - now%every + every
}
