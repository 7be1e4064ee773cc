package enforce

import (
	"time"

	"golang.org/x/sys/unix"
)

const (
	restEvery   = 100 * time.Millisecond // accounts at rest
	checkEvery  = time.Second            // whether somebody else has changed what is at rest
	afterBegin  = 300 * time.Microsecond // looks come this long after a period's begin
	early       = 150 * time.Microsecond // or by so much sooner, if there is something to do now
	gatherEach  = 100 * time.Microsecond // looks are put off by this at most, per account,
	gatherMost  = 10 * time.Millisecond  // and by this
	priority    = -10                    // nice
	longestWait = 10 * time.Second
)

// run looks at what is due until Close. It waits for a timerfd, which is exact: a Go
// timer is up to a millisecond late, and a thread that blocks in a system call has the
// runtime watch it, which costs more than the looks.
func (c *Controller) run() {
	defer close(c.ended)
	for {
		gone, closed := c.pass()
		for _, a := range gone {
			if c.cfg.Gone != nil {
				c.cfg.Gone(a)
			}
		}
		if closed {
			return
		}
		var count [8]byte
		if _, err := c.timer.Read(count[:]); err != nil {
			time.Sleep(time.Millisecond) // not to spin, whatever that may be
		}
	}
}

// pass looks at every account that is due, and sets the timer for the next one.
func (c *Controller) pass() (gone []*Account, closed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, true
	}
	now := c.now()
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
	c.alarm(next - c.now())
	return gone, false
}

// alarm has the timer go off.
func (c *Controller) alarm(in time.Duration) {
	ts := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(max(in, 1)))}
	_ = unix.TimerfdSettime(c.timerFD, 0, &ts, nil)
}

// nextTick is the next common multiple of an interval.
func nextTick(now, every time.Duration) time.Duration {
	return now - now%every + every
}
