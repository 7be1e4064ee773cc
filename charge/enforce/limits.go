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

// limits has the original and the present limit of the container's group.
type limits struct {
	original  bandwidth.Limit // wanted by whoever runs the container
	written   bandwidth.Limit // in the files, as far as the account knows
	quota     *journal.Entry  // restores the quota; nil: the file has the original
	burst     *journal.Entry  // restores the burst; nil: the file has the original
	wrote     time.Duration   // when the agent last wrote the quota; or 0
	reason    string          // why no time can be taken; empty: it can
	told      string          // why no time is to be taken; empty: it is
	owesSince time.Duration   // when the container was last in debt or had a lowered quota
	noBurst   bool            // the kernel has no burst
	noRaise   bool            // the kernel refuses a quota above the original
}

// protectAfter is how long a container must be free of debt before it gets burst. With a burst the
// kernel refills a whole quota at once.
const protectAfter = time.Second

// pressedFor is how long other containers keep their burst after the last time that a quota was
// lowered.
const pressedFor = 2 * time.Second

// learnFor is how long the account follows the kernel's periods after it wrote a quota.
const learnFor = 2 * time.Second

// writes tells whether the account wrote a quota lately. Writing needs the beginning of periods.
func (l *limits) writes(now time.Duration) bool { return l.wrote > 0 && now-l.wrote < learnFor }

// OnlyCount has the account count, and take no time, for a reason. The container gets its own limit
// back, and its debt is forgotten. With no reason, time is taken again.
func (a *Account) OnlyCount(reason string) {
	a.c.mu.Lock()
	defer a.c.mu.Unlock()
	if a.limits.told == reason {
		return
	}
	a.limits.told = reason
	a.limits.noQuota(a.group)
	a.balance.SetLimit(a.limits.taken())
	a.checked = 0 // the next look writes the limit
	a.rouse()
}

// taken is the limit within which time is taken.
func (l *limits) taken() balance.Limit {
	limit := limitOf(l.original)
	if l.told != "" {
		limit.Quota = bandwidth.None
	}
	return limit
}

// noQuota sets the reason why no time is taken from the group, if there is one.
func (l *limits) noQuota(g group) {
	l.reason = l.told
	switch {
	case l.told != "":
	case g.Root():
		l.reason = "it is the root group"
	case l.original.Quota < 0:
		l.reason = "no quota"
	}
}

// foreign tells whether somebody else has written a quota over ours, or where ours is about to be
// written. It makes that quota the original. check finds other changes within a second; for an
// account at rest, only if they matter or Status is called.
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

// check reads the files. A value that somebody else has written becomes the original.
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
		return a.adopt(have)
	}
	return nil
}

// adopt makes the values that somebody else has written the original.
func (a *Account) adopt(have bandwidth.Limit) error {
	l := &a.limits
	original, before := have, l.quota
	if have.Quota == l.written.Quota {
		original.Quota = l.original.Quota // the file still has our quota
	}
	if have.Burst == l.written.Burst {
		original.Burst = l.original.Burst
	}
	if have.Period != l.written.Period {
		a.phase = newPhase(have.Period)
		l.quota = nil // in v2 the journal's text for the quota contains the period
	}
	a.c.cfg.Log.Info("somebody changed a container's CPU limit", "container", a.name,
		"quota", original.Quota, "period", original.Period, "burst", original.Burst)
	l.original, l.written = original, have
	var err error
	if text := a.group.FormatQuota; l.quota == nil && have.Quota != original.Quota {
		err = a.undo(&l.quota, journal.Quota, a.group.QuotaFile(), text(original.Quota), text(have.Quota), text(have.Quota))
	}
	if l.quota != before {
		done(&before)
	}
	l.endUndo()
	l.noQuota(a.group)
	a.balance.SetLimit(l.taken())
	return err
}

// endUndo ends the journal's entries for files that have the original value: it was restored, or
// the kernel refused ours.
func (l *limits) endUndo() {
	if l.written.Quota == l.original.Quota {
		done(&l.quota)
	}
	if l.written.Burst == l.original.Burst {
		done(&l.burst)
	}
}

// done ends an entry of the journal, if there is one.
func done(e **journal.Entry) {
	if *e != nil {
		(*e).Done()
		*e = nil
	}
}

// control writes the quota and the burst that the group should have. The kernel refuses a burst
// above the quota. So the burst is lowered before the quota, and raised after it.
func (a *Account) control(out balance.Output) error {
	l, now := &a.limits, a.c.now()
	if l.reason != "" {
		return nil
	}
	if now < a.hold.letGo {
		out.Quota = l.original.Quota // the container owes what it uses too much
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
		l.noRaise = true // in v1, a group above has a quota that is no higher
		return nil
	case errors.Is(err, unix.EINVAL):
		return a.refused(err)
	}
	return err
}

// refused handles a write that the kernel refused. Somebody else may have changed the limit before
// that write, for example to a burst above our quota. The next look then tries again.
func (a *Account) refused(err error) error {
	before := a.limits.written
	if failed := a.check(a.c.now()); failed != nil {
		return failed
	}
	if a.limits.written != before {
		return nil
	}
	a.giveUp(err)
	return err
}

// protected tells whether the container is to get a burst: it has been free of debt for long
// enough, and others' quotas were lowered lately.
func (a *Account) protected(now time.Duration) bool {
	return a.c.cfg.Burst && !a.limits.noBurst && now >= a.hold.letGo && a.pressed(now) && now-a.limits.owesSince >= protectAfter
}

// lowered records whose quota was lowered last.
type lowered struct {
	last       *Account
	at, others time.Duration // at: when; others: when any other account's quota was last lowered, or 0
}

func (l *lowered) note(a *Account, now time.Duration) {
	if a != l.last {
		l.last, l.others = a, l.at
	}
	l.at = now
}

// besides returns when the quota of any other account was last lowered, or 0.
func (l *lowered) besides(a *Account) time.Duration {
	if a == l.last {
		return l.others
	}
	return l.at
}

// pressed tells whether the quota of another container was lowered lately. Its helpers may have
// used the CPU before that, so this container may have to catch up. A burst has a price: while it
// is set, the kernel refuses a quota below it, and so an engine's update fails. So the container's
// own lowered quota is no reason for a burst: with a burst it may use too much itself.
func (a *Account) pressed(now time.Duration) bool {
	last := a.c.lowered.besides(a)
	return last > 0 && now-last < pressedFor
}

// unprotected returns the burst that the container has without the agent's addition.
func (a *Account) unprotected() time.Duration {
	return min(a.limits.written.Burst, a.limits.original.Burst)
}

// giveUp stops changing a group whose limits the kernel does not let the agent write.
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
		// In v2 the file may have the quota: only the burst after it failed.
		if have, failed := a.group.QuotaText(); failed == nil && have == text(d) {
			l.written.Quota, l.wrote = d, a.c.now()
		}
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
	// The balance must not count the saved time as used too much.
	a.balance.SetBurst(max(d, l.original.Burst))
	return nil
}

// undo makes or extends the journal's entry for a file before the file is written. The file has the
// text now, and gets the text next. The entry restores original.
func (a *Account) undo(e **journal.Entry, order journal.Order, file, original, now, next string) error {
	if *e != nil {
		return (*e).Ours(now, next)
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

// putBack restores the group's quota and burst, unless somebody else has changed them.
func (a *Account) putBack() error {
	if a.limits.quota == nil && a.limits.burst == nil && a.limits.written == a.limits.original {
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
