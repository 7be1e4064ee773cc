package enforce

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/charge/balance"
	"github.com/tsugiki/tsugiki/charge/bandwidth"
	"github.com/tsugiki/tsugiki/charge/journal"
)

// limits is what the container's group has, and should have.
type limits struct {
	original  bandwidth.Limit // whoever runs the container wants
	written   bandwidth.Limit // is in the files, as far as is known
	quota     *journal.Entry  // undoes the quota; nil: it is the original
	burst     *journal.Entry
	wrote     time.Duration // when the quota was last written; or 0
	reason    string        // why nothing is taken; empty: something is
	owesSince time.Duration // when it was last seen to owe, or with another quota than its own
	noBurst   bool          // the kernel has none
	noRaise   bool          // the quota cannot be more than the original
}

// protectAfter is how long a container has to owe nothing before it has burst: with
// it the kernel gives it a quota at once.
const protectAfter = time.Second

// pressedFor is how long others keep their burst after the last time that a quota was
// lowered.
const pressedFor = 2 * time.Second

// learnFor is how long after a quota was written the kernel's periods are followed.
const learnFor = 2 * time.Second

// writes tells whether quotas are written, for which one has to know when periods begin.
func (l *limits) writes(now time.Duration) bool { return l.wrote > 0 && now-l.wrote < learnFor }

// noQuota finds out why nothing can be taken from the group.
func (l *limits) noQuota(g group) {
	l.reason = ""
	switch {
	case g.Root():
		l.reason = "it is the root group"
	case l.original.Quota < 0:
		l.reason = "no quota"
	}
}

// foreign tells whether somebody else has written a quota where ours is or would be
// now, and takes that over. Other changes are found by check, within a second, but at
// rest only if it matters or somebody asks.
func (a *Account) foreign(now, quota time.Duration) (bool, error) {
	l := &a.limits
	if quota == l.written.Quota && l.written.Quota == l.original.Quota {
		return false, nil
	}
	text, err := a.group.QuotaText()
	if err != nil || text == a.group.FormatQuota(l.written.Quota) {
		return false, err
	}
	return true, a.check(now)
}

// check reads what is in the files, and makes what somebody else has written the
// original.
func (a *Account) check(now time.Duration) error {
	a.checked = now
	have, err := a.group.Quota()
	if err != nil || a.group.Root() {
		return err
	}
	have.Burst = a.limits.written.Burst
	if !a.limits.noBurst {
		if have.Burst, err = a.group.Burst(); errors.Is(err, fs.ErrNotExist) && !isGone(err) {
			a.limits.noBurst, have.Burst = true, 0
		} else if err != nil {
			return err
		}
	}
	if have != a.limits.written {
		a.adopt(have)
	}
	return nil
}

// adopt takes over what somebody else has written.
func (a *Account) adopt(have bandwidth.Limit) {
	l := &a.limits
	original := have
	if have.Quota == l.written.Quota {
		original.Quota = l.original.Quota // this is still ours
	}
	if have.Burst == l.written.Burst {
		original.Burst = l.original.Burst
	}
	if have.Period != l.written.Period {
		a.phase = newPhase(have.Period)
		// In v2 the period is in the text that undoes the quota.
		done(&l.quota)
	}
	a.c.cfg.Log.Info("somebody changed a container's CPU limit", "container", a.name,
		"quota", original.Quota, "period", original.Period, "burst", original.Burst)
	l.original, l.written = original, have
	l.endUndo()
	l.noQuota(a.group)
	a.balance.SetLimit(limitOf(original))
}

// endUndo ends what would undo a write, where the file has the original: it was put back,
// or the kernel has refused what was to be written.
func (l *limits) endUndo() {
	if l.written.Quota == l.original.Quota {
		done(&l.quota)
	}
	if l.written.Burst == l.original.Burst {
		done(&l.burst)
	}
}

// done ends an entry of the journal.
func done(e **journal.Entry) {
	if *e != nil {
		(*e).Done()
		*e = nil
	}
}

// control gives the group the quota and the burst that it should have. A burst above
// the quota is refused, so it goes down before the quota and up after it.
func (a *Account) control(out balance.Output) error {
	l, now := &a.limits, a.c.now()
	if l.reason != "" {
		return nil
	}
	if now < a.hold.letGo {
		out.Quota = l.original.Quota // what it uses more is owed
	}
	if foreign, err := a.foreign(now, out.Quota); foreign || err != nil {
		return err
	}
	if l.noRaise {
		out.Quota = min(out.Quota, l.original.Quota)
	}
	lowered := out.Quota < l.original.Quota
	if lowered || !out.Protect {
		l.owesSince = now
	}
	if lowered {
		a.c.lowered.note(a, now)
	}
	burst := l.original.Burst
	switch {
	case lowered:
		burst = 0
	case a.protected(now):
		burst = max(burst, l.original.Quota)
	case l.written.Burst > burst && out.Protect && a.pressed(now):
		burst = l.written.Burst
	}
	var err error
	if burst < l.written.Burst {
		err = a.setBurst(burst)
	}
	if err == nil {
		err = a.setQuota(out.Quota)
	}
	if err == nil && burst > l.written.Burst {
		err = a.setBurst(burst)
	}
	switch {
	case errors.Is(err, unix.EINVAL) && out.Quota > l.original.Quota:
		l.noRaise = true // in v1, a group above has no more
		return nil
	case errors.Is(err, unix.EINVAL):
		a.giveUp(err)
	}
	return err
}

// protected tells whether the container has been without debt for long enough.
func (a *Account) protected(now time.Duration) bool {
	return a.c.cfg.Burst && !a.limits.noBurst && now >= a.hold.letGo && a.pressed(now) && now-a.limits.owesSince >= protectAfter
}

// lowered is whose quota was lowered last.
type lowered struct {
	last       *Account
	at, others time.Duration // when; and when that of any other account last was; or 0
}

func (l *lowered) note(a *Account, now time.Duration) {
	if a != l.last {
		l.last, l.others = a, l.at
	}
	l.at = now
}

// besides is when the quota of any other account was lowered last, or 0.
func (l *lowered) besides(a *Account) time.Duration {
	if a == l.last {
		return l.others
	}
	return l.at
}

// pressed tells whether the helpers of another container run ahead of its quota, so
// that this one may have to catch up. Nobody has our burst for nothing: while a group has
// it, the kernel refuses to lower its quota below it, and so an engine's update. What the
// container itself uses too much, as with burst it may, is no reason.
func (a *Account) pressed(now time.Duration) bool {
	last := a.c.lowered.besides(a)
	return last > 0 && now-last < pressedFor
}

// unprotected is the burst that the container has without ours.
func (a *Account) unprotected() time.Duration {
	return min(a.limits.written.Burst, a.limits.original.Burst)
}

// giveUp leaves a group alone whose limits the kernel does not let us write.
func (a *Account) giveUp(err error) {
	_ = a.putBack()
	a.limits.reason = err.Error()
	a.balance.SetLimit(balance.Limit{Quota: bandwidth.None, Period: a.limits.original.Period})
}

func (a *Account) setQuota(d time.Duration) error {
	l := &a.limits
	if d == l.written.Quota {
		l.endUndo()
		return nil
	}
	text := a.group.FormatQuota
	if err := a.undo(&l.quota, journal.Quota, a.group.QuotaFile(), text(l.original.Quota), text(l.written.Quota), text(d)); err != nil {
		return err
	}
	if err := a.group.SetQuota(d); err != nil {
		return err
	}
	l.written.Quota, l.wrote = d, a.c.now()
	l.endUndo()
	return nil
}

func (a *Account) setBurst(d time.Duration) error {
	l := &a.limits
	if d == l.written.Burst || l.noBurst {
		l.endUndo()
		return nil
	}
	text := bandwidth.FormatBurst
	if err := a.undo(&l.burst, journal.Burst, a.group.BurstFile(), text(l.original.Burst), text(l.written.Burst), text(d)); err != nil {
		return err
	}
	if err := a.group.SetBurst(d); err != nil {
		return err
	}
	l.written.Burst = d
	l.endUndo()
	// What the kernel lets it save is not to be held against it.
	a.balance.SetBurst(max(d, l.original.Burst))
	return nil
}

// undo has the journal know, before a file says now what was and is next, what it
// said at first.
func (a *Account) undo(e **journal.Entry, order journal.Order, file, original, now, next string) error {
	if *e != nil {
		return (*e).Ours(next)
	}
	ours := []string{next}
	if now != original {
		ours = []string{now, next}
	}
	var err error
	if *e, err = a.c.cfg.Journal.Write(order, file, original, ours...); err != nil {
		return fmt.Errorf("charge container %s: %w", a.name, err)
	}
	return nil
}

// putBack gives the group its quota and its burst back, unless somebody else has
// changed them.
func (a *Account) putBack() error {
	if a.limits.quota == nil && a.limits.burst == nil {
		return nil
	}
	if err := a.check(a.c.now()); err != nil {
		return err
	}
	l := &a.limits
	var errs []error
	if l.written.Burst > l.original.Burst {
		errs = append(errs, a.setBurst(l.original.Burst))
	}
	errs = append(errs, a.setQuota(l.original.Quota), a.setBurst(l.original.Burst))
	return errors.Join(errs...)
}
