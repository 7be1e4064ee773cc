package daemon

import (
	"fmt"
	"slices"

	"github.com/tsugiki/tsugiki/agent/httpapi"
	"github.com/tsugiki/tsugiki/api"
)

// orphan is a container of a pod that was not taken over when the daemon started. It runs on with the rules that it had,
// and follows no grant.
type orphan struct {
	*record
	why     string
	changed bool // the pod's grant was changed since
}

// noteOrphan notes a container that was not taken over.
func (d *Daemon) noteOrphan(r *record, why error) {
	if r.Pod == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.orphans = append(d.orphans, orphan{record: r, why: httpapi.OneLine(why)})
}

// noteChange notes for the orphans of a pod that its grant was changed.
func (d *Daemon) noteChange(uid string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.orphans {
		o := &d.orphans[i]
		o.changed = o.changed || o.Pod.UID == uid
	}
}

// forgetOrphanOf forgets that a container was not taken over, and tells whether the grant of its pod was changed since.
func (d *Daemon) forgetOrphanOf(m *managed) (changed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.orphans = slices.DeleteFunc(d.orphans, func(o orphan) bool {
		if o.Token != m.Token {
			return false
		}
		changed = o.changed
		return true
	})
	return changed
}

// orphansOf returns the containers of a pod that follow no grant, as failures of it.
func (d *Daemon) orphansOf(uid string) (list []api.GrantFailure) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for _, o := range d.orphans {
		if o.Pod.UID == uid && o.State.Lives() {
			list = append(list, api.GrantFailure{Container: o.Pod.Container, Reason: fmt.Sprintf(
				"the agent has not taken the container over, so it has the rules that it had, also those that are no longer granted; restart it: %s", o.why)})
		}
	}
	return list
}
