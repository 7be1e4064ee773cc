package enforce

import (
	"maps"
	"slices"
	"time"

	"github.com/tsugiki/tsugiki/charge/bandwidth"
)

// Status is the state of an account. The ledger keeps the sums across restarts of the agent.
type Status struct {
	Name     string
	Since    time.Time                // the beginning of the sums
	Own      time.Duration            // used by the container itself
	Borrowed map[string]time.Duration // used for the container, by source
	Placed   map[string]bool          // sources whose helpers run under its quota
	Debt     time.Duration            // not yet paid
	Carried  time.Duration            // the part of Debt that is paid by running at half the quota
	Forgiven time.Duration

	Before     bandwidth.Limit // wanted by whoever runs the container
	After      bandwidth.Limit // in the files now
	Throttling bandwidth.Throttling
	Pressure   *bandwidth.Pressure // nil: the kernel has none for the group

	Held        time.Duration // the sum of all ended holds
	HeldNow     time.Duration // the present hold so far; 0: not held
	LongestHold time.Duration
	Holds       int
	HeldTooLong int // holds that ended too late

	// Mode is "quota"; or "quota, not held: REASON" if the container cannot be frozen; or "account
	// only: REASON" if no time can be taken from it.
	Mode string
}

// Status returns the state now. The CPU times are those of the last look, up to a second ago if no
// helper works for the container.
func (a *Account) Status() Status {
	a.c.mu.Lock()
	if now := a.c.now(); now >= a.checked+checkAfter && slices.Contains(a.c.accounts, a) {
		if a.check(now) != nil {
			a.checked = 0 // the loop checks again and handles the error
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
