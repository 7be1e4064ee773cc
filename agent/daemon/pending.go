package daemon

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tsugiki/tsugiki/agent/vm"
	"github.com/tsugiki/tsugiki/api"
)

// # Guests that cannot be attached yet
//
// The agent attaches the guests of its configuration, and those of an earlier agent. A connection of a killed
// agent may have a port for a minute, and the VMM's folder may come later. So a guest that cannot be attached
// is tried again, until it is removed, or another container has its name.

// The pauses before a guest that could not be attached is tried again.
const (
	attachAgain    = time.Second
	attachAgainMax = time.Minute
)

// pendingGuest is a guest that is to be attached.
type pendingGuest struct {
	guest  api.Guest
	former *record       // of an earlier daemon; nil: the configuration has the guest
	over   chan struct{} // closed when it is not tried any more

	mu    sync.Mutex // is held while it is tried; guards what follows
	ended bool       // over is closed
}

// end has the guest not be tried any more; false if that was so. The caller holds p.mu.
func (p *pendingGuest) end() bool {
	was := p.ended
	if p.ended = true; !was {
		close(p.over)
	}
	return !was
}

// pendingGuests has at most one pending guest of a name. Its zero value is empty.
type pendingGuests struct {
	mu     sync.Mutex // guards byName; nobody waits for a pendingGuest meanwhile
	byName map[string]*pendingGuest
}

func (l *pendingGuests) find(name string) *pendingGuest {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byName[name]
}

// add has a guest take the place of another with its name.
func (l *pendingGuests) add(p *pendingGuest) {
	l.cancel(p.guest.Name)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byName == nil {
		l.byName = map[string]*pendingGuest{}
	}
	l.byName[p.guest.Name] = p
}

func (l *pendingGuests) drop(p *pendingGuest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byName[p.guest.Name] == p {
		delete(l.byName, p.guest.Name)
	}
}

// cancel has the guest of a name not be tried any more; false if there is none. When it returns, the guest is
// not being tried: it was attached, or will not be.
func (l *pendingGuests) cancel(name string) bool {
	p := l.find(name)
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	l.drop(p)
	return p.end()
}

// cancelConfigured cancels those of the configuration, and returns the names of those that were not attached.
func (l *pendingGuests) cancelConfigured() (canceled []string) {
	var names []string
	l.mu.Lock()
	for name, p := range l.byName {
		if p.former == nil {
			names = append(names, name)
		}
	}
	l.mu.Unlock()
	for _, name := range names {
		if l.cancel(name) {
			canceled = append(canceled, name)
		}
	}
	return canceled
}

// attachPatiently attaches a guest. If that fails, it is tried again and again.
func (d *Daemon) attachPatiently(p *pendingGuest) {
	p.over = make(chan struct{})
	d.pending.add(p)
	err := d.try(p, false)
	if err == nil {
		return
	}
	d.log.Error("virtual machine is not attached; it is tried again", "container", p.guest.Name, "err", err)
	go func() {
		for pause := attachAgain; ; pause = min(2*pause, attachAgainMax) {
			select {
			case <-time.After(pause):
			case <-p.over:
				return
			case <-d.closing:
				return
			}
			if d.try(p, true) == nil {
				return
			}
		}
	}()
}

// try attaches a pending guest. Without an error, it is not to be tried again. Nor is it the next time that
// another container has its name.
func (d *Daemon) try(p *pendingGuest, again bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return nil
	}
	if !again || d.find(p.guest.Name) == nil {
		if _, err := d.attachGuest(context.Background(), p.guest, p.former == nil); err != nil {
			if p.former != nil {
				err = errors.Join(err, d.putFormer(p.former))
			}
			return err
		}
	}
	p.end()
	d.pending.drop(p)
	return nil
}

// putFormer keeps the record of a guest that could not be attached, for the next daemon.
func (d *Daemon) putFormer(r *record) error {
	d.changes.Lock()
	defer d.changes.Unlock()
	if d.find(r.Name) != nil || d.leavingIs(r.Name) != nil {
		return nil // another has the name
	}
	return d.store.put(r)
}

// removePending removes a pending guest; false if there is none. An id, if there is one, is to be the guest's. While
// the guest's holder does not end, the guest is pending still.
func (d *Daemon) removePending(name, id string) (was bool, err error) {
	p := d.pending.find(name)
	switch {
	case p == nil:
		return false, nil
	case p.former == nil:
		return id == "" && d.find(name) == nil, errConfigured
	case id != "" && id != p.former.ID:
		return false, nil
	}
	p.mu.Lock() // it is not tried meanwhile
	defer p.mu.Unlock()
	if p.ended {
		return false, nil
	}
	if !d.hasName(name) {
		if err := vm.Forget(d.holderOf(name)); err != nil { // it may wait for the holder
			return true, err
		}
	}
	p.end()
	d.pending.drop(p)
	d.changes.Lock()
	defer d.changes.Unlock()
	if d.find(name) != nil || d.leavingIs(name) != nil {
		return false, nil
	}
	d.log.Info("virtual machine, which could not be attached, is removed", "container", name)
	return true, d.store.delete(name)
}

// hasName tells whether some container, also one that is being removed, has a name.
func (d *Daemon) hasName(name string) bool {
	d.changes.Lock()
	defer d.changes.Unlock()
	return d.find(name) != nil || d.leavingIs(name) != nil
}
