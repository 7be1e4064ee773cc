package enforce

import (
	"errors"
	"fmt"
	"time"

	"github.com/tsugiki/tsugiki/charge/balance"
	"github.com/tsugiki/tsugiki/charge/journal"
)

// hold is the state and the counts of a container's holds.
type hold struct {
	freezer freezer       // nil: not needed yet, or not usable
	reason  string        // why the freezer is not usable
	retry   time.Duration // when to look for a freezer again
	on      bool          // the agent holds the container
	since   time.Duration
	entry   *journal.Entry // undoes the hold; suspended while the container is not held
	letGo   time.Duration  // no hold before this time

	total, longest time.Duration
	count, late    int
}

const (
	retryFreezer = time.Second
	// thawedByOthers is how long a container is not held after somebody else thawed it.
	thawedByOthers = time.Second
	// slack is the delay of a hold's end that a busy machine explains.
	slack = balance.Pulse + gatherMost
)

// freeze holds the container, unless it cannot be held or somebody else has frozen it. Only the
// agent writes to a private freezer, so that one is not read.
func (a *Account) freeze(now time.Duration) error {
	h := &a.hold
	if h.on || now < h.letGo || now < h.retry {
		return nil
	}
	if err := a.findFreezer(); err != nil {
		h.reason, h.retry = err.Error(), now+retryFreezer
		return err
	}
	if !h.freezer.Private() {
		a.c.drain() // writes by others before now do not concern this hold
		if frozen, err := h.freezer.Frozen(); err != nil || frozen {
			return a.loseFreezer(now, err)
		}
	}
	if err := a.noteThaw(); err != nil {
		return a.loseFreezer(now, err)
	}
	if err := h.freezer.Freeze(); err != nil {
		return a.loseFreezer(now, err)
	}
	h.on, h.since = true, now
	h.count++
	return nil
}

// noteThaw has the journal thaw the container if the agent dies.
func (a *Account) noteThaw() (err error) {
	h := &a.hold
	if h.entry != nil {
		return h.entry.Resume()
	}
	thawed, frozen := h.freezer.Texts()
	h.entry, err = a.c.cfg.Journal.Write(journal.Thaw, h.freezer.File(), thawed, frozen...)
	return err
}

// findFreezer finds the container's freezer. It watches a freezer that others use, too.
func (a *Account) findFreezer() error {
	if a.hold.freezer != nil {
		return nil
	}
	f, err := a.group.Freezer()
	if err != nil {
		return err
	}
	if !f.Private() {
		if a.c.watch == nil {
			return errors.Join(fmt.Errorf("watch %s: %w", f.File(), a.c.blind), f.Close())
		}
		if err := a.c.watch.add(f.File(), a); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	a.hold.freezer, a.hold.reason = f, ""
	return nil
}

// loseFreezer closes the freezer after an error, so that it is looked for again. The container's
// processes may have moved to another group.
func (a *Account) loseFreezer(now time.Duration, err error) error {
	if err != nil {
		a.closeFreezer()
		a.hold.reason, a.hold.retry = err.Error(), now+retryFreezer
	}
	return err
}

func (a *Account) closeFreezer() {
	if !a.hold.on {
		done(&a.hold.entry)
	}
	if f := a.hold.freezer; f != nil {
		if !f.Private() {
			a.c.watch.remove(f.File(), a)
		}
		_ = f.Close()
		a.hold.freezer = nil
	}
}

// release ends a hold. It first reads the writes by others: if somebody else has frozen the
// container meanwhile, it stays frozen.
func (a *Account) release(now time.Duration) error {
	h := &a.hold
	if !h.on {
		return nil
	}
	if !h.freezer.Private() {
		a.c.drain()
		if !h.on {
			return nil
		}
	}
	if err := h.freezer.Thaw(); err != nil {
		if isGone(err) {
			a.ended(now)
		}
		return err // the next look tries again
	}
	held := now - h.since
	if limit := balance.Bound(); held > limit+slack {
		h.late++
		a.c.cfg.Log.Warn("a container was held for too long", "container", a.name, "held", held, "limit", limit)
	}
	a.ended(now)
	return nil
}

// ended records that the agent does not hold the container any more.
func (a *Account) ended(now time.Duration) {
	h := &a.hold
	held := now - h.since
	h.on = false
	h.total += held
	h.longest = max(h.longest, held)
	h.entry.Suspend()
}

// othersWrote handles a write by somebody else to the container's freezer.
func (a *Account) othersWrote(now time.Duration) error {
	h := &a.hold
	if !h.on {
		return nil
	}
	frozen, err := h.freezer.Frozen()
	if err != nil {
		return err
	}
	a.ended(now)
	a.lookBy(now) // a held account was not due at the beginning of the next period
	if !frozen {
		h.letGo = max(h.letGo, now+thawedByOthers)
	}
	return nil
}
