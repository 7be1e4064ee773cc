package daemon

import (
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/tsugiki/tsugiki/agent/container"
	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/gate"
)

// # Containers that are taken over late
//
// A container may not be taken over when the daemon starts: a gate is stopped, or the machine is short of files,
// memory or time. It runs on, and calls that need the daemon wait. So it is tried again, until it ends.
//
// A container is found by requests once it is restored, and is late then. Before, it is as if it were not there, but for
// its name and its ports.

// The pauses before a container is tried again. A gate that does not answer is tried again after the first.
const (
	lateAgain    = 500 * time.Millisecond
	lateAgainMax = 10 * time.Second
)

const (
	notAdopted    = "container not taken over; it runs on without an agent"
	notYetAdopted = "container not taken over yet; it is tried again"
)

// tries are those of one container.
type tries struct {
	pause time.Duration // before the next one
	said  string        // the error that was logged last
}

// failed logs an error, unless it is the one before once more, and makes the pause longer.
func (t *tries) failed(log *slog.Logger, err error) {
	if text := err.Error(); text != t.said {
		log.Error(notYetAdopted, "err", err)
		t.said = text
	}
	t.pause = min(2*t.pause, lateAgainMax)
}

// unrestored is a container that could not be restored, with its rules. again is managed.again.
type unrestored struct {
	*record
	given rules.Rules
	again bool
}

// restoreAll takes over the containers that could not be restored when the daemon started, once that succeeds.
func (d *Daemon) restoreAll() {
	for _, u := range d.unrestored {
		go d.restoreLate(u)
	}
	d.unrestored = nil
}

func (d *Daemon) restoreLate(u unrestored) {
	log := d.log.With("container", u.Name)
	for t := (tries{pause: lateAgain}); d.pauses(t.pause); {
		m, err := d.restore(u)
		switch {
		case m != nil:
			d.adoptLate(m)
			return
		case err == nil:
			return
		case !container.MayPass(err):
			log.Error(notAdopted, "err", err)
			return
		}
		t.failed(log, err)
	}
}

// restore restores a container, which is late then. It returns nil if the container has ended.
func (d *Daemon) restore(u unrestored) (*managed, error) {
	m, err := d.restoreRecord(u)
	if m == nil || err != nil {
		return nil, err
	}
	m.charge()
	if d.forgetOrphanOf(m) {
		if f := d.followGrant(m); f.stays != nil {
			m.log.Error("the container may have rules that are not granted any more", "err", f.stays)
		}
	}
	return m, nil
}

func (d *Daemon) restoreRecord(u unrestored) (*managed, error) {
	d.changes.Lock()
	defer d.changes.Unlock()
	if d.closed {
		return nil, nil
	}
	if r, err := d.store.get(u.Name); err != nil || r == nil || r.Token != u.Token {
		return nil, err // somebody has removed it
	}
	m := d.newManaged(u.identity, u.given)
	m.again = u.again
	lives, err := m.Restore(u.State)
	if !lives {
		m.log.Info("container ended", "err", err)
		return nil, d.forget(m)
	}
	if err != nil {
		return nil, errors.Join(err, m.release())
	}
	d.findPorts([]*managed{m})
	d.insert(m)
	return m, nil
}

// adoptLate takes over a container that is late, once that succeeds.
func (d *Daemon) adoptLate(m *managed) {
	t := tries{pause: lateAgain}
	for {
		again, lives, err := m.AdoptLate()
		switch {
		case !lives:
			d.end(m)
			return
		case err == nil:
			if m.Awaits() {
				d.awaitProgram(m, adoptedPatience)
			}
			m.letPodsIn()
			if m.Pod != nil {
				d.admitPod(m.Pod.UID)
			}
			m.log.Info("container taken over", "gates", m.GateCount())
			return
		case errors.Is(err, os.ErrClosed):
			return
		case !again:
			m.log.Error(notAdopted, "err", err)
			return
		case errors.Is(err, gate.ErrSilent):
			t.pause = lateAgain
		default:
			t.failed(m.log, err)
		}
		if !d.pauses(t.pause) {
			return
		}
	}
}

// pauses waits, and tells whether the daemon still serves then.
func (d *Daemon) pauses(pause time.Duration) bool {
	select {
	case <-time.After(pause):
		return true
	case <-d.closing:
		return false
	}
}
