package daemon

import (
	"errors"
	"time"

	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/gate"
)

// adoptedPatience is how long a container may be without a program that was registered
// with a daemon that has ended since: who was about to start it may have been told that
// there is none, and could not take it back.
const adoptedPatience = 10 * time.Second

const (
	// adoptPatience is how long gates that do not answer may hold up the others when a daemon
	// starts, all together. Each has adoptLeast all the same.
	adoptPatience = 2 * time.Second
	adoptLeast    = 100 * time.Millisecond
	// lateAgain is after how long a gate that did not answer is tried again.
	lateAgain = 500 * time.Millisecond
)

// adoptAll takes over the containers of an earlier daemon.
func (d *Daemon) adoptAll() error {
	records, err := d.store.all()
	if err != nil {
		return err
	}
	for _, r := range records {
		if r.Boot != d.boot {
			d.log.Info("container ended with the machine", "container", r.Name)
			if err := d.store.delete(r.Name); err != nil {
				return err
			}
			continue
		}
		if err := d.adopt(r); err != nil {
			d.log.Error("container not taken over; it runs on without an agent", "container", r.Name, "err", err)
		}
	}
	d.findPorts()
	// Not before: while a helper of another container is being started, it has a
	// copy of every file that we have, and so of what a program is about to close.
	for _, m := range d.all() {
		if m.Late() {
			go d.adoptLate(m)
		} else {
			m.Resume()
		}
	}
	return nil
}

func (d *Daemon) adopt(r *record) error {
	given, err := rules.Parse(r.rules())
	if err != nil {
		return err
	}
	m := d.newManaged(r.identity, given)
	d.insert(m)
	patience := max(adoptPatience-d.silence, adoptLeast)
	lives, err := m.Adopt(r.State, patience)
	switch {
	case !lives:
		// Ended, or half made or half removed when the earlier daemon was killed.
		m.log.Debug("nothing to take over", "err", err)
		d.end(m)
		return nil
	case errors.Is(err, gate.ErrSilent):
		d.log.Warn("a gate does not answer, somebody may have stopped it; its container is taken over when it goes on", "container", r.Name)
		d.silence += patience
		return nil
	case err != nil:
		d.drop(m)
		return errors.Join(err, m.release())
	}
	if m.Awaits() {
		d.awaitProgram(m, adoptedPatience)
	}
	d.log.Info("container taken over", "container", r.Name, "gates", m.GateCount())
	return nil
}

// adoptLate takes over a container with a gate that did not answer when the daemon started, once it
// does.
func (d *Daemon) adoptLate(m *managed) {
	for {
		again, lives, err := m.AdoptLate()
		switch {
		case !lives:
			d.end(m)
			return
		case err != nil && !again:
			d.log.Error("container not taken over; it runs on without an agent", "container", m.Name, "err", err)
			return
		case err == nil:
			d.log.Info("container taken over", "container", m.Name, "gates", m.GateCount())
			return
		}
		select {
		case <-time.After(lateAgain):
		case <-d.closing:
			return
		}
	}
}
