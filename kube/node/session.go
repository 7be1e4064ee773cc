package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	"github.com/tsugiki/tsugiki/kube/grant"
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
			k.registers++
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

// begin begins a session: it learns from the agent, and the first one from the pods' status, which pods
// have which ports, has all pods put again, and takes away what pods have that are gone.
func (n *Node) begin(ctx context.Context) error {
	states, err := n.Agent.Pods()
	if err != nil {
		n.Log.Error("ask the agent for its pods", "err", err)
		return err
	}
	var pods corev1.PodList
	if err := n.client.List(ctx, &pods, client.UnsafeDisableDeepCopy); err != nil {
		n.Log.Error("list pods of the cache", "err", err)
		return err
	}
	n.mu.Lock()
	n.session++
	n.waiting = map[string]time.Time{}
	n.adopt(states)
	if n.session == 1 {
		n.claim(pods.Items)
	}
	known := slices.Collect(maps.Keys(n.known)) // of which some may be gone
	n.mu.Unlock()
	for _, key := range known {
		n.enqueue(key)
	}
	n.Log.Info("the agent's stream of events has begun", "pods", len(states))
	for _, r := range n.podsIn(ctx, "") {
		n.enqueue(r.NamespacedName)
	}
	return nil
}

// adopt notes the ports that pods have, then those that they have had, and that the agent knows the pods.
// The caller holds mu.
func (n *Node) adopt(states []api.PodState) {
	for _, has := range []bool{true, false} {
		for i := range states {
			s := &states[i]
			for _, r := range s.Running {
				n.adoptRules(s, r, has)
			}
			if s.Grant != nil && has {
				for _, r := range s.Grant.Containers {
					n.adoptRules(s, r, has)
				}
			}
		}
	}
	for i := range states {
		key := types.NamespacedName{Namespace: states[i].Namespace, Name: states[i].Name}
		n.note(key, states[i].UID).given = true
	}
}

// adoptRules notes the ports of a container's endpoints. With named, these are the endpoints that its rules name: it
// has them. Else these are the others: it has had them, the latest last.
func (n *Node) adoptRules(s *api.PodState, r api.Rules, named bool) {
	pod := n.ports.Of(s.UID, s.Namespace)
	for _, ep := range r.Endpoints {
		name, at, is := listens(ep)
		if !is || named != slices.ContainsFunc(r.Ingress, func(rule string) bool { return strings.HasSuffix(rule, "="+name) }) {
			continue
		}
		if named {
			pod.Adopt(name, at)
		} else {
			pod.AdoptFormer(name, at)
		}
	}
}

// claim notes the ports that pods have by their status. After a boot of the node the agent knows none, and
// EndpointSlices lead to these. The caller holds mu.
func (n *Node) claim(pods []corev1.Pod) {
	for i := range pods {
		p := &pods[i]
		if !n.concerns(p) || ended(p) {
			continue
		}
		claims, err := grant.ClaimsOf(p)
		if err != nil {
			n.Log.Warn("which ports the pod had is not known", "err", err) // its author cannot write that
		}
		for _, s := range claims {
			n.ports.Of(string(p.UID), p.Namespace).Claim(s.Rule, s.Host)
			n.note(client.ObjectKeyFromObject(p), string(p.UID)).seen = true // so that Reconcile releases them when the pod is gone
		}
	}
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
		k = &known{uid: uid, endpoints: map[string]time.Time{}}
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
	n.mu.Lock()
	delete(n.waiting, uid) // a container that waits later finds no grant
	n.mu.Unlock()
	if err := n.revoke(uid); err != nil {
		return err
	}
	if n.ports.Release(uid) {
		n.wakeShort()
	}
	return nil
}

// settle notes which ports a pod has, now that the decision about it is in force. Pods that have found none
// may find one then.
func (n *Node) settle(pod *corev1.Pod, served []grant.Served) {
	if n.ports.Of(string(pod.UID), pod.Namespace).Settle(served) {
		n.wakeShort()
	}
}

// wakeShort wakes the pods for which there was no port.
func (n *Node) wakeShort() {
	n.mu.Lock()
	var keys []types.NamespacedName
	for key, pods := range n.known {
		if slices.ContainsFunc(pods, func(k *known) bool { return k.short }) {
			keys = append(keys, key)
		}
	}
	n.mu.Unlock()
	for _, key := range keys {
		n.enqueue(key)
	}
}

// revoke takes the grant of a pod away.
func (n *Node) revoke(uid string) error {
	if err := n.Agent.DeleteGrant(uid); !errors.Is(err, api.ErrNotFound) {
		return err
	}
	return nil
}
