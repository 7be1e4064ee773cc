package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/forward"
)

// # What a grant says of a pod as a whole
//
// Direct forward (package forward): a grant may say that no packet of its pod goes directly to
// another pod of the node. The network plugin knows a pod by the id of its sandbox. What the
// network's configuration has switched off stays off: only links that a daemon has switched off are
// switched on again.
//
// Charging (package charge/accounts): a grant may say that the CPU time of others is counted and not
// taken. That is said by the ids of the pod's containers, before they run and whether they have rules
// or not, since the accounts of others than grafted containers are opened when they are found.
//
// Bare containers (bare.go) are those that have begun without rules.
//
// The store has the notes, so the next daemon knows them. Each is in the store before the container starts.

// podNotes has what containers of pods say when they are registered, by the pod's UID, until the
// pod's grant is deleted.
type podNotes struct {
	mu    sync.Mutex // guards what follows, and serializes changes of links and accounts
	store *store     // nil: the notes are not kept
	byUID map[string]*podNote
}

// podNote is a record of the store.
type podNote struct {
	Namespace  string                  `json:"namespace"`
	Name       string                  `json:"name"`
	Sandbox    string                  `json:"sandbox,omitempty"` // empty: the engine does not say it
	Off        []int                   `json:"off,omitempty"`     // links that a daemon has switched off
	Containers map[string]podContainer `json:"containers"`        // by names: of each name the last one

	counted []string // ids of containers that are only counted
}

type podContainer struct {
	ID   string `json:"id"`
	Bare bool   `json:"bare,omitempty"`
}

// load reads the notes of an earlier daemon from a store, and keeps them there from now on. Notes that cannot be read
// are left out, since containers wait for the daemon: a link of such a pod stays off, and a bare container is not told.
func (n *podNotes) load(s *store, log *slog.Logger) {
	n.store = s
	var err error
	if n.byUID, err = s.pods(); err != nil {
		log.Error("what is noted of pods cannot be read", "err", err)
	}
}

// note notes a container of a pod, and whether it begins without rules. After an error nothing has been noted.
func (n *podNotes) note(p *api.Pod, id string, bare bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.add(p, id, bare)
}

// noteFormer notes a container that another daemon may have registered, unless one of its name has been noted: that one
// may be a later one, whose former one is about to be removed.
func (n *podNotes) noteFormer(p *api.Pod, id string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if of := n.byUID[p.UID]; of != nil {
		if _, noted := of.Containers[p.Container]; noted {
			return nil
		}
	}
	return n.add(p, id, false)
}

// add is note, of a caller that holds mu.
func (n *podNotes) add(p *api.Pod, id string, bare bool) error {
	now := podNote{Namespace: p.Namespace, Name: p.Name, Containers: map[string]podContainer{}}
	of := n.byUID[p.UID]
	if of != nil {
		now = *of
		now.Containers = maps.Clone(of.Containers)
	}
	if p.Sandbox != "" && now.Sandbox != p.Sandbox { // another container may have said it
		now.Sandbox, now.Off = p.Sandbox, nil
	}
	is := podContainer{id, bare}
	if of != nil && now.Sandbox == of.Sandbox && of.Containers[p.Container] == is {
		return nil
	}
	now.Containers[p.Container] = is
	return n.put(p.UID, &now)
}

// drop forgets a container that could not be registered.
func (n *podNotes) drop(p *api.Pod, id string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	of := n.byUID[p.UID]
	if of == nil || of.Containers[p.Container].ID != id {
		return nil
	}
	now := *of
	now.Containers = maps.Clone(of.Containers)
	delete(now.Containers, p.Container)
	return n.put(p.UID, &now)
}

// put replaces the note of a pod. The caller holds mu.
func (n *podNotes) put(uid string, note *podNote) error {
	if n.store != nil {
		if err := n.store.putPod(uid, note); err != nil {
			return err
		}
	}
	if n.byUID == nil {
		n.byUID = map[string]*podNote{}
	}
	n.byUID[uid] = note
	return nil
}

// forget removes the note of a pod. The caller holds mu.
func (n *podNotes) forget(uid string) error {
	if n.store != nil {
		if err := n.store.deletePod(uid); err != nil {
			return err
		}
	}
	delete(n.byUID, uid)
	return nil
}

// has tells whether a container of a pod has been noted.
func (n *podNotes) has(uid string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.byUID[uid] != nil
}

// pods returns the pods of which a container has been noted, by their UIDs.
func (n *podNotes) pods() map[string]*api.PodState {
	n.mu.Lock()
	defer n.mu.Unlock()
	pods := map[string]*api.PodState{}
	for uid, of := range n.byUID {
		pods[uid] = &api.PodState{UID: uid, Namespace: of.Namespace, Name: of.Name}
	}
	return pods
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
	if err := n.forward(g != nil && g.Slow, func() error { return d.podNotes.put(uid, n) }); err != nil {
		return fmt.Errorf("direct forward of the pod: %w", err)
	}
	return nil
}

// forgetUngranted forgets what is noted of a pod that has no grant any more.
func (d *Daemon) forgetUngranted(uid string) error {
	d.podNotes.mu.Lock()
	defer d.podNotes.mu.Unlock()
	if d.podNotes.byUID[uid] == nil || d.grants.Get(uid) != nil {
		return nil
	}
	return d.podNotes.forget(uid)
}

// count has the pod's present containers be only counted, or not, and those of before be forgotten.
func (n *podNote) count(onlyCount func(id, reason string), is bool) {
	var now []string
	for _, c := range n.Containers {
		if is {
			now = append(now, c.ID)
			onlyCount(c.ID, "the grant of its pod says count")
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

// forward switches the pod's links. A link is noted and saved before it is switched off: the next daemon may have to
// switch it on. If that fails, the link is switched off all the same.
func (n *podNote) forward(slow bool, save func() error) error {
	if !slow && len(n.Off) == 0 {
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
	if n.Sandbox == "" {
		return errNoSandbox
	}
	entries, err := t.Entries()
	if err != nil {
		return err
	}
	entries = slices.DeleteFunc(entries, func(e forward.Entry) bool {
		return e.Owner.Container != n.Sandbox || slow && !e.Direct || !slow && !slices.Contains(n.Off, e.Device)
	})
	var unsaved error
	for _, e := range entries {
		if slow && !slices.Contains(n.Off, e.Device) {
			n.Off = append(n.Off, e.Device)
			unsaved = save()
		}
	}
	for _, e := range entries {
		if err := t.SetDirect(e.Device, !slow); err != nil && !errors.Is(err, forward.ErrUnknown) {
			return errors.Join(fmt.Errorf("link %s: %w", e.Link, err), unsaved)
		}
	}
	if !slow {
		n.Off = nil
		unsaved = save()
	}
	return unsaved
}
