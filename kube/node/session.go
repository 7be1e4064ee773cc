package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/tsugiki/tsugiki/api"
)

// again is the pause before the agent is asked for another stream.
const again = 500 * time.Millisecond

// Start follows the agent until ctx ends. The manager calls it once its caches are complete.
func (n *Node) Start(ctx context.Context) error {
	for ctx.Err() == nil {
		err := n.Agent.PodEvents(ctx, func(e api.PodEvent) { n.handle(ctx, e) })
		if ctx.Err() != nil {
			break
		}
		n.Log.Warn("the agent's stream of events has ended; another one begins", "err", err)
		select {
		case <-time.After(again):
		case <-ctx.Done():
		}
	}
	return nil
}

// handle acts on an event of the agent.
func (n *Node) handle(ctx context.Context, e api.PodEvent) {
	key := types.NamespacedName{Namespace: e.Pod.Namespace, Name: e.Pod.Name}
	switch e.Type {
	case api.PodReady:
		for n.begin(ctx) != nil {
			select {
			case <-time.After(again):
			case <-ctx.Done():
				return
			}
		}
		return
	case api.PodWaiting:
		n.mu.Lock()
		if n.waiting[e.Pod.UID].IsZero() {
			n.waiting[e.Pod.UID] = time.Now()
		}
		n.mu.Unlock()
	case api.PodRefused:
		n.Log.Warn("container refused", "pod", key, "container", e.Pod.Container, "reason", e.Reason)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: types.UID(e.Pod.UID)}}
		n.mu.Lock()
		if n.find(key, e.Pod.UID) == nil {
			delete(n.waiting, e.Pod.UID) // nobody else does: the pod may never be in the caches
		}
		n.mu.Unlock()
		n.tell(pod, corev1.EventTypeWarning, ReasonRefused, fmt.Sprintf("container %s: %s", e.Pod.Container, e.Reason))
	case api.PodRegistered:
		n.mu.Lock()
		delete(n.waiting, e.Pod.UID)
		if k := n.find(key, e.Pod.UID); k != nil {
			k.given = true
			delete(k.restart, e.Pod.Container)
			k.failed = slices.DeleteFunc(slices.Clone(k.failed), func(f api.GrantFailure) bool { return f.Container == e.Pod.Container })
		}
		n.mu.Unlock()
	}
	n.enqueue(key)
}

func (n *Node) enqueue(key types.NamespacedName) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	n.wake <- event.TypedGenericEvent[client.Object]{Object: pod}
}

// begin begins a session: it learns from the agent which pods have which ports, has all pods put
// again, and takes away what pods have that are gone.
func (n *Node) begin(ctx context.Context) error {
	states, err := n.Agent.Pods()
	if err != nil {
		n.Log.Error("ask the agent for its pods", "err", err)
		return err
	}
	n.mu.Lock()
	n.session++
	n.waiting = map[string]time.Time{}
	for i := range states {
		n.adopt(&states[i])
	}
	n.mu.Unlock()
	for i := range states { // of which some may be gone
		n.enqueue(types.NamespacedName{Namespace: states[i].Namespace, Name: states[i].Name})
	}
	n.Log.Info("the agent's stream of events has begun", "pods", len(states))
	for _, r := range n.podsIn(ctx, "") {
		n.enqueue(r.NamespacedName)
	}
	return nil
}

// adopt notes the ports that a pod has, and that the agent knows the pod. The caller holds mu.
func (n *Node) adopt(s *api.PodState) {
	rules := []api.Rules{}
	for _, r := range s.Running {
		rules = append(rules, r)
	}
	if s.Grant != nil {
		for _, r := range s.Grant.Containers {
			rules = append(rules, r)
		}
	}
	for _, r := range rules {
		for _, ep := range r.Endpoints {
			if name, at, is := listens(ep); is {
				n.ports.Adopt(s.UID, name, at)
			}
		}
	}
	key := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
	n.note(key, s.UID).given = true
}

// find returns what is known of a pod; nil if that is nothing. The caller holds mu.
func (n *Node) find(key types.NamespacedName, uid string) *known {
	for _, k := range n.known[key] {
		if k.uid == uid {
			return k
		}
	}
	return nil
}

// note is find for a pod of which something is known from now on. The caller holds mu.
func (n *Node) note(key types.NamespacedName, uid string) *known {
	k := n.find(key, uid)
	if k == nil {
		k = &known{uid: uid, endpoints: map[string]bool{}}
		n.known[key] = append(n.known[key], k)
	}
	return k
}

// others returns what is known of all pods of a name but one. The caller holds mu.
func (n *Node) others(key types.NamespacedName, uid string) []*known {
	return slices.DeleteFunc(slices.Clone(n.known[key]), func(k *known) bool { return k.uid == uid })
}

// listens reads an endpoint that grant.Decide has made of an ingress rule.
func listens(definition string) (name string, at netip.AddrPort, is bool) {
	words := strings.Fields(definition)
	if len(words) != 7 || words[6] == "dynamic" {
		return "", at, false
	}
	addr, err := netip.ParseAddr(words[4])
	if err != nil {
		return "", at, false
	}
	port, err := strconv.ParseUint(words[6], 10, 16)
	return words[0], netip.AddrPortFrom(addr, uint16(port)), err == nil
}

// isGone tells whether a pod that the agent knows is gone. The caches may be older than what an
// earlier tsugiki-kube has told the agent: of a pod that was never seen in them, the API server is
// asked.
func (n *Node) isGone(ctx context.Context, key types.NamespacedName, k *known) (bool, error) {
	n.mu.Lock()
	seen := k.seen
	n.mu.Unlock()
	if seen {
		return true, nil
	}
	var pod corev1.Pod
	err := n.live.Get(ctx, key, &pod)
	if err != nil && !apierrors.IsNotFound(err) {
		return false, err
	}
	return err != nil || string(pod.UID) != k.uid || !n.concerns(&pod) || ended(&pod), nil
}

// remove takes away all that a pod was given.
func (n *Node) remove(uid string) error {
	if err := n.revoke(uid); err != nil {
		return err
	}
	n.ports.Release(uid)
	n.mu.Lock()
	delete(n.waiting, uid)
	n.mu.Unlock()
	return nil
}

// revoke takes the grant of a pod away.
func (n *Node) revoke(uid string) error {
	if err := n.Agent.DeleteGrant(uid); !errors.Is(err, api.ErrNotFound) {
		return err
	}
	return nil
}
