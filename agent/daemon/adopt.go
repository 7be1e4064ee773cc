package daemon

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/tsugiki/tsugiki/agent/container"
	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/gate"
)

// adoptedPatience is how long an adopted container may be without a program. The process that was
// about to start the program may have found no daemon, and so could not take the registration back.
const adoptedPatience = 10 * time.Second

const (
	// adoptPatience is how long all gates that do not answer may together delay the others when a
	// daemon starts. Each of them has adoptLeast in any case.
	adoptPatience = 2 * time.Second
	adoptLeast    = 100 * time.Millisecond
)

// adoptAll takes over the containers of an earlier daemon.
func (d *Daemon) adoptAll() error {
	records, err := d.store.all()
	if err != nil {
		return err
	}
	again, err := d.startedAgain()
	if err != nil {
		return err
	}
	for _, r := range records {
		started := r.ID != "" && again[r.Name] == r.ID
		if started {
			r.PID, r.Started = 0, ""
			if err := d.store.put(r); err != nil { // others wait; without it, the next daemon finds the former program gone
				d.log.Error("a container that was started again cannot be written down so", "container", r.Name, "err", err)
			}
		}
		if r.Boot != d.boot {
			d.log.Info("container ended with the machine", "container", r.Name)
			if err := d.store.delete(r.Name); err != nil {
				return err
			}
			continue
		}
		if r.VSock != "" {
			if err := d.forgetFormer(r); err != nil {
				d.log.Error("virtual machine cannot be attached anew", "container", r.Name, "err", err)
			}
			continue
		}
		if err := d.adopt(r, started); err != nil {
			d.log.Error(notAdopted, "container", r.Name, "err", err)
			d.noteOrphan(r, err)
		}
	}
	for _, dir := range []string{api.AgainDir(d.runDir), api.EndedDir(d.runDir)} {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	d.findPorts(d.all())
	// This comes after all adoptions: while a helper of another container is being started, it has
	// a copy of each of our files, and so of those that a program is about to close.
	for _, m := range d.all() {
		if m.Late() {
			go d.adoptLate(m)
			continue
		}
		m.letPodsIn() // now all of them are known, or will say so
		m.Resume()
	}
	return nil
}

// awaitPrograms waits for the first programs of containers that were adopted without one. Listeners
// are accepted by then. A container that was started again has a runtime at work.
func (d *Daemon) awaitPrograms() {
	for _, m := range d.awaited {
		patience := adoptedPatience
		if m.again {
			patience = attachPatience
		}
		d.awaitProgram(m, patience)
	}
	d.awaited = nil
}

// startedAgain returns the ids of the containers that tsugiki-runtime has started again without a
// daemon, by name. Their first programs have ended, and new ones are about to come.
func (d *Daemon) startedAgain() (map[string]string, error) {
	dir := api.AgainDir(d.runDir)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	ids := map[string]string{}
	for _, e := range entries {
		id, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		ids[e.Name()] = string(id)
	}
	return ids, nil
}

func (d *Daemon) adopt(r *record, again bool) error {
	given, err := rules.Parse(r.rules())
	if err != nil {
		return err
	}
	m := d.newManaged(r.identity, given)
	m.again = again
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
	case m.Late():
		m.log.Error(notYetAdopted, "err", err)
		return nil
	case err != nil:
		d.drop(m)
		if container.MayPass(err) {
			d.unrestored = append(d.unrestored, unrestored{r, given, again})
		}
		return errors.Join(err, m.release())
	}
	if m.Awaits() {
		d.awaited = append(d.awaited, m)
	}
	d.log.Info("container taken over", "container", r.Name, "gates", m.GateCount())
	return nil
}
