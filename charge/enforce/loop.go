package enforce

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

const (
	restEvery   = 100 * time.Millisecond // accounts at rest
	checkEvery  = time.Second            // whether somebody else has changed what is at rest
	afterBegin  = 300 * time.Microsecond // looks come this long after a period's begin
	early       = 150 * time.Microsecond // or by so much sooner, if there is something to do now
	priority    = -10                    // nice
	longestWait = 10 * time.Second
)

// run looks at what is due until Close. The thread is its own: a Go timer is a
// millisecond late, and when the machine is loaded this has to come before others.
func (c *Controller) run() {
	defer close(c.ended)
	runtime.LockOSThread() // for good: the thread ends with its priority
	// Without CAP_SYS_NICE it goes on as it is.
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), priority)
	for {
		next, gone, closed := c.pass()
		for _, a := range gone {
			if c.cfg.Gone != nil {
				c.cfg.Gone(a)
			}
		}
		if closed {
			return
		}
		c.sleep(next)
	}
}

// pass looks at every account that is due, and returns when the next one will be.
func (c *Controller) pass() (next time.Duration, gone []*Account, closed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, nil, true
	}
	if c.watch != nil {
		c.drain()
	}
	now := c.now()
	next = now + longestWait
	for _, a := range c.accounts {
		if a.due <= now+early {
			if err := a.look(c.now()); isGone(err) {
				gone = append(gone, a)
				continue
			} else if err != nil {
				a.complain(err)
			}
		}
		next = min(next, a.due)
	}
	for _, a := range gone {
		c.drop(a)
		a.bury()
	}
	return next, gone, false
}

// sleep waits until a time, a kick, or somebody's write to a watched freezer.
func (c *Controller) sleep(until time.Duration) {
	wait := until - c.now()
	if wait <= 0 {
		return
	}
	fds := []unix.PollFd{{Fd: int32(c.wake), Events: unix.POLLIN}, {Fd: -1}}
	if c.watch != nil {
		fds[1] = unix.PollFd{Fd: int32(c.watch.fd), Events: unix.POLLIN}
	}
	ts := unix.NsecToTimespec(int64(wait))
	if _, err := unix.Ppoll(fds, &ts, nil); err == nil && fds[0].Revents != 0 {
		var buf [8]byte
		_, _ = unix.Read(c.wake, buf[:])
	}
}

// nextTick is the next common multiple of an interval.
func nextTick(now, every time.Duration) time.Duration {
	return now - now%every + every
}
