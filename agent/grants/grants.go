// Package grants owns what the pods of Kubernetes on this node are given: a table of grants by the
// pod's UID, containers that wait for one, and the stream of events for whoever gives them.
//
// It decides nothing: tsugiki-kube does, by the cluster's resources. It knows no container, and
// keeps nothing on disk. It needs no privilege and no particular kernel.
//
// # Theory of operation
//
// A container of a pod asks for its grant before it starts (Await), and waits if there is none yet.
// The giver follows the stream of events (Watch), which first tells it that the stream has begun.
// Then it puts the grants of all pods. A giver that does so whenever a stream has ended needs to
// know nothing of restarts: neither of this process, nor of its own.
//
// Who has made a container of a grant looks afterwards whether Get returns the same pointer, as the
// grant may have been replaced meanwhile.
package grants

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/policy"
)

const (
	// podsMax is the number of grants, some times what a kubelet may have as pods.
	podsMax = 4096
	// waitingMax is the number of containers that wait at once. Each takes one of the API's
	// connections.
	waitingMax = 96
	// uidMax and containersMax limit a grant.
	uidMax        = 128
	containersMax = 256
)

// Patience is how long a container waits for the grant of its pod. The kubelet tries again later.
const Patience = 8 * time.Second

// ErrFull says that there is no room for another grant.
var ErrFull = errors.New("too many pods")

// Table has the grants.
type Table struct {
	patience time.Duration

	mu      sync.Mutex // guards what follows
	grants  map[string]*api.Grant
	waiting int
	changed chan struct{} // closed by each Put
	streams []*Stream
}

// New makes a table. Containers wait for a time; 0 is Patience.
func New(patience time.Duration) *Table {
	if patience == 0 {
		patience = Patience
	}
	return &Table{patience: patience, grants: map[string]*api.Grant{}, changed: make(chan struct{})}
}

// Put replaces the grant of a pod, which the caller does not change any more. It refuses rules that no container could have, with
// rules.ErrRequest.
func (t *Table) Put(uid string, g api.Grant) error {
	if err := check(uid, &g); err != nil {
		return fmt.Errorf("%w: grant of pod %s/%s: %w", rules.ErrRequest, g.Namespace, g.Name, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.grants[uid] == nil && len(t.grants) >= podsMax {
		return fmt.Errorf("%w: %d have a grant", ErrFull, podsMax)
	}
	t.grants[uid] = &g
	close(t.changed)
	t.changed = make(chan struct{})
	return nil
}

func check(uid string, g *api.Grant) error {
	switch {
	case uid == "" || len(uid) > uidMax:
		return fmt.Errorf("the UID has %d bytes; 1 to %d may be", len(uid), uidMax)
	case g.Namespace == "" || g.Name == "":
		return errors.New("namespace and name are missing")
	case g.Charge != "" && g.Charge != api.ChargeCount:
		return fmt.Errorf("unknown charge %q; write %s or nothing", g.Charge, api.ChargeCount)
	case len(g.Containers) > containersMax:
		return fmt.Errorf("%d containers, at most %d may be", len(g.Containers), containersMax)
	}
	for _, name := range slices.Sorted(maps.Keys(g.Containers)) {
		if given := g.Containers[name]; given.Translate != nil && len(given.Egress) == 0 {
			return fmt.Errorf("container %s: its IPv4 is translated, and no egress rule says which hosts it reaches", name)
		}
		r, err := rules.Parse(g.Containers[name])
		if err == nil {
			_, err = policy.NewTable(r.Ingress, r.Egress, r.NameRules...)
		}
		if err != nil {
			return fmt.Errorf("container %s: %w", name, err)
		}
	}
	return nil
}

// Delete removes the grant of a pod, and tells whether there was one.
func (t *Table) Delete(uid string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, found := t.grants[uid]
	delete(t.grants, uid)
	return found
}

// Get returns the grant of a pod; nil if there is none.
func (t *Table) Get(uid string) *api.Grant {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.grants[uid]
}

// All returns all grants by their pods' UIDs.
func (t *Table) All() map[string]*api.Grant {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.grants)
}

// Await returns the grant of a container's pod, and waits for it if there is none. If none comes,
// or if the grant is a refusal or another pod's, the error wraps rules.ErrNotAllowed.
func (t *Table) Await(ctx context.Context, pod *api.Pod) (*api.Grant, error) {
	if pod == nil || pod.UID == "" {
		return nil, fmt.Errorf("%w: the container's runtime does not say which pod it is of; grants need containerd 1.6 or later, or CRI-O", rules.ErrNotAllowed)
	}
	g, err := t.wait(ctx, pod)
	switch {
	case err != nil:
		return nil, err
	case g.Namespace != pod.Namespace || g.Name != pod.Name:
		return nil, fmt.Errorf("%w: the grant with the UID of pod %s/%s is that of pod %s/%s", rules.ErrNotAllowed, pod.Namespace, pod.Name, g.Namespace, g.Name)
	case g.Refused != "":
		return nil, fmt.Errorf("%w: %s", rules.ErrNotAllowed, g.Refused)
	}
	return g, nil
}

// wait returns the grant with a pod's UID as soon as there is one.
func (t *Table) wait(ctx context.Context, pod *api.Pod) (*api.Grant, error) {
	t.mu.Lock()
	if g := t.grants[pod.UID]; g != nil {
		t.mu.Unlock()
		return g, nil
	}
	if t.waiting >= waitingMax {
		t.mu.Unlock()
		return nil, t.none(pod, fmt.Sprintf("and %d containers wait for theirs", waitingMax))
	}
	t.waiting++
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.waiting--
	}()
	t.Tell(api.PodEvent{Type: api.PodWaiting, Pod: *pod})
	late := time.NewTimer(t.patience)
	defer late.Stop()
	for {
		t.mu.Lock()
		g, changed := t.grants[pod.UID], t.changed
		t.mu.Unlock()
		if g != nil {
			return g, nil
		}
		select {
		case <-changed:
		case <-late.C:
			return nil, t.none(pod, fmt.Sprintf("within %s", t.patience))
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return nil, t.none(pod, "in the time that its runtime has")
			}
			return nil, t.none(pod, "before its runtime gave up")
		}
	}
}

func (t *Table) none(pod *api.Pod, why string) error {
	return fmt.Errorf("%w: no grant for pod %s/%s has come %s; see whether tsugiki-kube runs on this node", rules.ErrNotAllowed, pod.Namespace, pod.Name, why)
}
