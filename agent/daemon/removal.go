package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/tsugiki/tsugiki/agent/container"
	"github.com/tsugiki/tsugiki/agent/httpapi"
)

// # The end of a daemon's container
//
// The removal of a container takes as long as its helpers and the memory of its programs take. The
// container keeps its name and its ports until then. Other containers come, change and go
// meanwhile.

// leavePatience is how long a registration waits for the removal of a container with the same name.
// The container's cgroups have ten seconds.
const leavePatience = 15 * time.Second

// endPatience is how long a registration waits for the end of the same container, which is started
// again.
const endPatience = 2 * time.Second

// errAbandoned says why nothing was registered. Nobody is there to read it.
var errAbandoned = errors.New("who asked for the container is gone")

// abandoned tells whether the caller of a request has gone. The server finds that out too, but
// maybe only after the request is done.
func abandoned(ctx context.Context) bool {
	return httpapi.HungUp(ctx) || ctx.Err() != nil
}

// removal describes a container that is being removed.
type removal struct {
	*ended
	done chan struct{} // closed when it has been removed
	err  error         // of the removal; valid then
}

// endedMax is the number of ended containers that are kept for later requests.
const endedMax = 256

// ended is a container that was removed or is being removed. cause says why the daemon ended it by
// itself, if so.
type ended struct{ id, token, cause string }

// causeOf returns why the daemon has ended the container that was registered with an id; "" if it
// has not.
func (d *Daemon) causeOf(id string) string {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for _, e := range d.ended {
		if e.id == id && e.cause != "" {
			return e.cause
		}
	}
	return ""
}

// hasEnded tells whether a container with a token was removed recently.
func (d *Daemon) hasEnded(token string) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return slices.ContainsFunc(d.ended, func(e *ended) bool { return e.token == token })
}

// leavingIs returns the removal of the container of a name; nil if there is none.
func (d *Daemon) leavingIs(name string) *removal {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.leaving[name]
}

// leave marks a container as being removed, unless it is so already or is gone.
func (d *Daemon) leave(m *managed) *removal {
	d.changes.Lock()
	defer d.changes.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.byName[m.Name] != m {
		return nil
	}
	delete(d.byName, m.Name)
	delete(d.byToken, m.Token)
	r := &removal{ended: &ended{id: m.ID, token: m.Token}, done: make(chan struct{})}
	d.ended = append(d.ended, r.ended)
	d.ended = d.ended[max(0, len(d.ended)-endedMax):]
	d.leaving[m.Name] = r
	d.removals.Add(1)
	return r
}

// remove ends a container, forgets it, and logs why.
func (d *Daemon) remove(m *managed, why string) error {
	r := d.leave(m)
	if r == nil {
		return httpapi.ErrNoContainer
	}
	defer d.removals.Done()
	d.log.Info(why, "container", m.Name)
	r.err = d.forget(m)
	d.mu.Lock()
	defer d.mu.Unlock()
	r.cause = m.Cause()
	delete(d.leaving, m.Name)
	close(r.done)
	return r.err
}

// forget ends a container that no request can find any more, or that none could find yet.
func (d *Daemon) forget(m *managed) error {
	err := m.remove()
	d.ports.Forget(m.Name)
	if err != nil {
		return err // the next daemon finds the record and tries again
	}
	return d.store.delete(m.Name)
}

// forgetOrphan removes the remains of a container that was not taken over or could not be removed.
// It refuses the name if the container still runs. The caller holds d.changes.
func (d *Daemon) forgetOrphan(name string) error {
	r, err := d.store.get(name)
	if r == nil || err != nil {
		return err
	}
	if r.State.Lives() {
		return fmt.Errorf("%w: a container %s runs, with the id %s, which was not taken over; stop it, or choose another name", container.ErrExists, name, r.ID)
	}
	if err := container.ForgetState(d.runDir, name, r.State); err != nil {
		return err
	}
	d.ports.Forget(name)
	return d.store.delete(name)
}

// end removes a container whose programs have ended.
func (d *Daemon) end(m *managed) {
	if err := d.remove(m, "container ended"); err != nil && !errors.Is(err, httpapi.ErrNoContainer) {
		d.log.Error("remove container", "container", m.Name, "err", err)
	}
}

// awaitProgram removes a container whose program never came.
func (d *Daemon) awaitProgram(m *managed, patience time.Duration) {
	time.AfterFunc(patience, func() {
		if m.Begun() || d.find(m.Name) != m {
			return
		}
		d.log.Warn("container was registered and never started; it is removed", "container", m.Name)
		d.end(m)
	})
}

// lockName locks d.changes once a container's name is free. If the same container is registered
// again, it was never started, or its end was not reported.
func (d *Daemon) lockName(ctx context.Context, name, id string) error {
	began := time.Now()
	for {
		m, leaving, err := d.tryName(ctx, name)
		switch {
		case err != nil:
			return err
		case m == nil && leaving == nil:
			return nil
		case m != nil && m.ID == id && !m.Runs():
			if err := d.remove(m, "container is registered again"); err != nil && !errors.Is(err, httpapi.ErrNoContainer) {
				return err
			}
		case m != nil && (m.ID != id || time.Since(began) > endPatience), time.Since(began) > leavePatience:
			return taken(name, m, leaving)
		}
		// The container may be about to end.
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// tryName locks d.changes if a name is free. Otherwise it returns the container or the removal that
// has the name.
func (d *Daemon) tryName(ctx context.Context, name string) (*managed, *removal, error) {
	d.changes.Lock()
	m, leaving := d.find(name), d.leavingIs(name)
	var err error
	switch {
	case d.closed:
		err = os.ErrClosed
	case abandoned(ctx):
		err = errAbandoned
	case m == nil && leaving == nil:
		return nil, nil, nil
	}
	d.changes.Unlock()
	return m, leaving, err
}

func taken(name string, m *managed, leaving *removal) error {
	if m == nil {
		return fmt.Errorf("%w: a container %s, with the id %s, is still ending; try again, or choose another name", container.ErrExists, name, leaving.id)
	}
	return fmt.Errorf("%w: a container %s runs, with the id %s; choose another name", container.ErrExists, name, m.ID)
}

// releaseAll lets go of all containers at once, because each may take its time.
func (d *Daemon) releaseAll() error {
	list := d.all()
	errs := make([]error, len(list))
	var all sync.WaitGroup
	for i, m := range list {
		d.drop(m)
		all.Add(1)
		go func() {
			defer all.Done()
			errs[i] = m.release()
		}()
	}
	all.Wait()
	return errors.Join(errs...)
}
