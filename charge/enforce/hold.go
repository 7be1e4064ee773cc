package enforce

import (
	"errors"
	"fmt"
	"time"

	"github.com/tsugiki/tsugiki/charge/balance"
	"github.com/tsugiki/tsugiki/charge/journal"
)

// hold is whether a container is held, and how often it was.
type hold struct {
	freezer freezer       // nil: it has not been needed, or there is none
	reason  string        // why there is none
	retry   time.Duration // when to look for one again
	on      bool          // we hold it
	since   time.Duration
	entry   *journal.Entry // thaws it; while it is not held, suspended
	letGo   time.Duration  // not held until then

	total, longest time.Duration
	count, late    int
}

const (
	retryFreezer = time.Second
	// thawedByOthers is how long somebody has to do what he thawed the container for.
	thawedByOthers = time.Second
	// slack is how much later than it should a hold may end on a busy machine.
	slack = balance.Pulse + gatherMost
)

// freeze holds the container, if it can be and nobody else has frozen it. A private freezer
// is nobody else's.
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
		a.c.drain() // what others wrote before is not about this hold
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

// noteThaw has the journal thaw the container, should the agent end.
func (a *Account) noteThaw() (err error) {
	h := &a.hold
	if h.entry != nil {
		return h.entry.Resume()
	}
	thawed, frozen := h.freezer.Texts()
	h.entry, err = a.c.cfg.Journal.Write(journal.Thaw, h.freezer.File(), thawed, frozen...)
	return err
}

// findFreezer finds the container's freezer, and watches it if others use it too.
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

// loseFreezer has the freezer looked for again after an error: the container's
// processes may have moved.
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

// release ends a hold. What others wrote to the freezer by now comes first: if they
// froze the container, it is theirs.
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
		return err // and again at the next look
	}
	held := now - h.since
	if limit := balance.Bound(); held > limit+slack {
		h.late++
		a.c.cfg.Log.Warn("a container was held for too long", "container", a.name, "held", held, "limit", limit)
	}
	a.ended(now)
	return nil
}

// ended notes that we do not hold the container any more.
func (a *Account) ended(now time.Duration) {
	h := &a.hold
	held := now - h.since
	h.on = false
	h.total += held
	h.longest = max(h.longest, held)
	h.entry.Suspend()
}

// othersWrote is told that somebody else has frozen or thawed the container.
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
	a.lookBy(now) // held, it was not due at the beginning of the next period
	if !frozen {
		h.letGo = max(h.letGo, now+thawedByOthers)
	}
	return nil
}
