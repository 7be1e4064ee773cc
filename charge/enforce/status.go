package enforce

import (
	"maps"
	"slices"
	"time"

	"github.com/tsugiki/tsugiki/charge/bandwidth"
)

// Status is what an account has come to. Sums are of all agents that knew the
// container.
type Status struct {
	Name     string
	Since    time.Time                // of the sums
	Own      time.Duration            // used by the container itself
	Borrowed map[string]time.Duration // used for it, by source
	Placed   map[string]bool          // sources whose helpers run under its quota
	Debt     time.Duration            // yet to be paid for
	Carried  time.Duration            // of this, by running at half the quota
	Forgiven time.Duration

	Before     bandwidth.Limit // as whoever runs the container wants it
	After      bandwidth.Limit // as it is now
	Throttling bandwidth.Throttling
	Pressure   *bandwidth.Pressure // nil: the kernel does not tell

	Held        time.Duration // in all, not counting now
	HeldNow     time.Duration // so far; 0: it is not held
	LongestHold time.Duration
	Holds       int
	HeldTooLong int // holds that should have ended sooner

	// Mode is "quota", "quota, not held: REASON" where the container cannot be
	// frozen, or "account only: REASON" where nothing is taken from it.
	Mode string
}

// Status is of this moment, but for the CPU times, which are those of the last look:
// up to a second ago where nothing runs for the container.
func (a *Account) Status() Status {
	a.c.mu.Lock()
	if now := a.c.now(); now >= a.checked+checkAfter && slices.Contains(a.c.accounts, a) {
		if a.check(now) != nil {
			a.checked = 0 // what has gone wrong is for the loop to see
		}
	}
	h := &a.hold
	s := Status{
		Name: a.name, Since: a.entry.Since(), Own: a.entry.Own(), Borrowed: a.entry.Sources(), Placed: maps.Clone(a.placed),
		Debt: a.balance.Debt(), Carried: a.balance.Carried(), Forgiven: a.entry.Forgiven(),
		Before: a.limits.original, After: a.limits.written,
		Held: h.total, LongestHold: h.longest, Holds: h.count, HeldTooLong: h.late,
		Mode: "quota",
	}
	if h.on {
		s.HeldNow = a.c.now() - h.since
	}
	switch {
	case a.limits.reason != "":
		s.Mode = "account only: " + a.limits.reason
	case h.reason != "":
		s.Mode = "quota, not held: " + h.reason
	}
	a.c.mu.Unlock()

	if t, err := a.group.Throttled(); err == nil {
		s.Throttling = t
	}
	if p, ok, err := a.group.Pressure(); err == nil && ok {
		s.Pressure = &p
	}
	return s
}
