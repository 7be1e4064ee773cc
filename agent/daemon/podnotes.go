package daemon

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/forward"
)

// # What a grant says of a pod as a whole
//
// Direct forward (package forward): a grant may say that no packet of its pod goes directly to
// another pod of the node. The network plugin knows a pod by the id of its sandbox. What the
// network's configuration has switched off stays off: only links that this daemon has switched off are
// switched on again. A daemon that was restarted knows of none, so a pod stays slow then until it ends.
//
// Charging (package charge/accounts): a grant may say that the CPU time of others is counted and not
// taken. That is said by the ids of the pod's containers, before they run and whether they have rules
// or not, since the accounts of others than grafted containers are opened when they are found.

// podNotes has what containers of pods say when they are registered, by the pod's UID, until the
// pod's grant is deleted.
type podNotes struct {
	mu    sync.Mutex // guards what follows, and serializes changes of links and accounts
	byUID map[string]*podNote
}

type podNote struct {
	sandbox    string            // empty: the engine does not say it
	off        []int             // links that this daemon has switched off
	containers map[string]string // ids by names: of each name the last one
	counted    []string          // ids of containers that are only counted
}

// note notes a container of a pod.
func (n *podNotes) note(p *api.Pod, id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	of := n.byUID[p.UID]
	if of == nil {
		of = &podNote{containers: map[string]string{}}
		if n.byUID == nil {
			n.byUID = map[string]*podNote{}
		}
		n.byUID[p.UID] = of
	}
	if p.Sandbox != "" && of.sandbox != p.Sandbox { // another container may have said it
		of.sandbox, of.off = p.Sandbox, nil
	}
	of.containers[p.Container] = id
}

// followAsPod has a pod follow its grant in what concerns the pod as a whole. A pod of which no
// container has been registered is as it should be.
func (d *Daemon) followAsPod(uid string) error {
	d.podNotes.mu.Lock()
	defer d.podNotes.mu.Unlock()
	g, n := d.grants.Get(uid), d.podNotes.byUID[uid]
	if n == nil {
		return nil
	}
	if d.accounts != nil {
		n.count(d.accounts.OnlyCount, g != nil && g.Charge == api.ChargeCount)
	}
	if err := n.forward(g != nil && g.Slow); err != nil {
		return fmt.Errorf("direct forward of the pod: %w", err)
	}
	if g == nil {
		delete(d.podNotes.byUID, uid)
	}
	return nil
}

// count has the pod's present containers be only counted, or not, and those of before be forgotten.
func (n *podNote) count(onlyCount func(id, reason string), is bool) {
	var now []string
	for _, id := range n.containers {
		if is {
			now = append(now, id)
			onlyCount(id, "the grant of its pod says count")
		}
	}
	for _, id := range n.counted {
		if !slices.Contains(now, id) {
			onlyCount(id, "")
		}
	}
	n.counted = now
}

// errNoSandbox says that nobody knows which links are a pod's. An agent before pod.sandbox has
// registered its containers, or the engine does not say it.
var errNoSandbox = errors.New("the container's runtime has not said which sandbox the pod has; make the pod anew")

// restartSlow is what containers of such a pod are told to need a new container for.
const restartSlow = "directForward: false"

// forward switches the pod's links.
func (n *podNote) forward(slow bool) error {
	if !slow && len(n.off) == 0 {
		return nil
	}
	t, err := forward.OpenExisting()
	if errors.Is(err, forward.ErrNoTable) {
		return nil
	}
	if err != nil {
		return err
	}
	defer t.Close()
	if n.sandbox == "" {
		return errNoSandbox
	}
	entries, err := t.Entries()
	if err != nil {
		return err
	}
	for i := range entries {
		e := &entries[i]
		if e.Owner.Container != n.sandbox {
			continue
		}
		was := slices.Contains(n.off, e.Device)
		if slow && !e.Direct || !slow && !was {
			continue
		}
		if err := t.SetDirect(e.Device, !slow); err != nil && !errors.Is(err, forward.ErrUnknown) {
			return fmt.Errorf("link %s: %w", e.Link, err)
		}
		if slow && !was {
			n.off = append(n.off, e.Device)
		}
	}
	if !slow {
		n.off = nil
	}
	return nil
}
