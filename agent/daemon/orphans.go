package daemon

import (
	"fmt"

	"github.com/tsugiki/tsugiki/agent/httpapi"
	"github.com/tsugiki/tsugiki/api"
)

// orphan is a container of a pod that was not taken over when the daemon started. It runs on with the rules that it had,
// and follows no grant.
type orphan struct {
	*record
	why string
}

// noteOrphan notes a container that was not taken over.
func (d *Daemon) noteOrphan(r *record, why error) {
	if r.Pod == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.orphans = append(d.orphans, orphan{r, httpapi.OneLine(why)})
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
