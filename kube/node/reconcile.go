package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/kube/caches"
	"github.com/tsugiki/tsugiki/kube/grant"
)

// refusedAgain is the default of Options.Again.
const refusedAgain = time.Minute

// Reconcile does for a pod what is missing.
func (n *Node) Reconcile(ctx context.Context, r ctrl.Request) (ctrl.Result, error) {
	n.mu.Lock()
	session := n.session
	n.mu.Unlock()
	if session == 0 {
		return ctrl.Result{}, nil // begin wakes all pods
	}
	var pod corev1.Pod
	err := n.client.Get(ctx, r.NamespacedName, &pod)
	if err != nil && !apierrors.IsNotFound(err) {
		return ctrl.Result{}, err
	}
	here := err == nil && n.concerns(&pod) && !ended(&pod)
	uid := ""
	if here {
		uid = string(pod.UID)
	}
	waits := n.waits(string(pod.UID))
	if err == nil && n.asksNoMore(&pod) {
		if err := n.letGo(ctx, &pod); err != nil {
			return ctrl.Result{}, err
		}
	}
	switch wait, err := n.forgetOthers(ctx, r.NamespacedName, uid); {
	case err != nil:
		return ctrl.Result{}, err
	case wait:
		return ctrl.Result{RequeueAfter: again}, nil // until the cache has it
	}
	if !here {
		if err == nil && waits && !n.concerns(&pod) {
			err = n.refuseOther(&pod)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	k := n.know(&pod)
	d, err := n.decide(ctx, &pod, k)
	if err != nil {
		return ctrl.Result{}, err
	}
	if wait := n.refusalWaits(&pod, k, &d); wait != 0 {
		n.settle(&pod, nil)
		return ctrl.Result{RequeueAfter: max(0, wait)}, nil
	}
	var result ctrl.Result
	err = n.put(&pod, k, session, &d.Grant)
	if errors.Is(err, api.ErrInvalid) && d.Grant.Refused == "" {
		// Without this, the pod would keep rules that the resources no longer have.
		d.Grant, d.Served = api.Grant{Namespace: pod.Namespace, Name: pod.Name, Refused: clip("the agent cannot give the pod its rules: " + err.Error())}, nil
		result.RequeueAfter = n.Again
		err = n.put(&pod, k, session, &d.Grant)
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	n.settle(&pod, d.Served)
	look, err := n.watchOver(&pod, k, &d)
	if err != nil {
		return ctrl.Result{}, err
	}
	soon := func(after time.Duration) {
		if after = max(after, time.Millisecond); result.RequeueAfter == 0 || after < result.RequeueAfter {
			result.RequeueAfter = after
		}
	}
	if look > 0 {
		soon(look)
	}
	n.mu.Lock()
	k.decided = &d
	if k.short {
		soon(n.Again) // who listens at a port may end, and nobody tells
	}
	if len(k.failed) > 0 {
		soon(time.Until(k.retry))
	}
	for _, endpoint := range d.Awaits {
		soon(n.Grace - time.Since(k.endpoints[endpoint]))
	}
	n.mu.Unlock()
	select {
	case n.writes <- event.TypedGenericEvent[client.Object]{Object: &pod}:
		return result, nil
	case <-ctx.Done():
		return ctrl.Result{}, ctx.Err()
	}
}

// write writes what became of the last decision about a pod: its status.
func (n *Node) write(ctx context.Context, r ctrl.Request) (ctrl.Result, error) {
	var pod corev1.Pod
	if err := n.client.Get(ctx, r.NamespacedName, &pod); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !n.concerns(&pod) {
		return ctrl.Result{}, nil // letGo writes its status
	}
	n.mu.Lock()
	var d *grant.Decision
	k := n.find(r.NamespacedName, string(pod.UID))
	if k != nil {
		d = k.decided
	}
	n.mu.Unlock()
	if d == nil {
		return ctrl.Result{}, nil // Reconcile has not decided about this pod
	}
	return ctrl.Result{}, n.writeStatus(ctx, &pod, k, d)
}

// ended tells whether no container of a pod runs any more, or will.
func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// forgetOthers forgets all pods of a name but the one that is here, whose UID may be empty. It
// returns true if one of them may be there, and the caches do not have it yet.
func (n *Node) forgetOthers(ctx context.Context, key types.NamespacedName, uid string) (wait bool, err error) {
	n.mu.Lock()
	others := n.others(key, uid)
	n.mu.Unlock()
	for _, k := range others {
		gone, err := n.isGone(ctx, key, k)
		if err == nil && gone {
			err = n.forget(key, k)
		}
		if err != nil {
			return false, err
		}
		wait = wait || !gone
	}
	return wait, nil
}

// forget takes away what a pod had that is gone, or that is another one by now.
func (n *Node) forget(key types.NamespacedName, k *known) error {
	if err := n.remove(k.uid); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.known[key] = n.others(key, k.uid); len(n.known[key]) == 0 {
		delete(n.known, key)
	}
	return nil
}

// decide asks what a pod is given, by the caches. It notes an endpoint before it reads it, and that
// rules select pods before it reads those, so that each later change of these wakes the pod.
func (n *Node) decide(ctx context.Context, pod *corev1.Pod, k *known) (grant.Decision, error) {
	if n.ofOthers(pod) {
		return grant.OfClass(pod), nil
	}
	endpoints, selects := map[string]time.Time{}, false
	ports := n.ports.Of(string(pod.UID), pod.Namespace)
	d, err := caches.Decide(ctx, n.client, pod, n.Node, ports, caches.Asked{
		Note: func(endpoint string) {
			endpoints[endpoint] = time.Time{}
			n.mu.Lock()
			defer n.mu.Unlock()
			if _, is := k.endpoints[endpoint]; !is {
				k.endpoints[endpoint] = time.Now()
			}
		},
		MayCome: func(endpoint string) bool {
			n.mu.Lock()
			defer n.mu.Unlock()
			since := k.endpoints[endpoint]
			endpoints[endpoint] = since
			return k.decided != nil && k.decided.Grant.Refused == "" && time.Since(since) < n.Grace
		},
		Peers: func() (*grant.Peers, error) {
			selects = true
			n.mu.Lock()
			k.selects = true
			n.mu.Unlock()
			return n.peers(ctx)
		},
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	k.endpoints, k.selects, k.short = endpoints, selects, ports.Short
	return d, err
}

// know returns what is known of a pod.
func (n *Node) know(pod *corev1.Pod) *known {
	n.mu.Lock()
	defer n.mu.Unlock()
	k := n.note(client.ObjectKeyFromObject(pod), string(pod.UID))
	k.seen = true
	return k
}

// refusalWaits tells how long a refusal has to wait; 0: it does not; less: until a container of the
// pod waits. See the theory of operation.
func (n *Node) refusalWaits(pod *corev1.Pod, k *known, d *grant.Decision) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	if d.Grant.Refused == "" || d.Final || k.given || k.put != nil {
		return 0
	}
	since, waits := n.waiting[k.uid]
	if !waits {
		return -1
	}
	return max(0, n.graceFor(pod)-time.Since(since))
}

// put tells the agent what a pod is given, unless it knows that, and tells of what has changed for
// containers that run.
func (n *Node) put(pod *corev1.Pod, k *known, session uint64, g *api.Grant) error {
	n.mu.Lock()
	registers := k.registers
	same := k.put != nil && k.session == session && reflect.DeepEqual(k.put, g) && (len(k.failed) == 0 || time.Now().Before(k.retry))
	n.mu.Unlock()
	if same {
		return nil
	}
	changed, err := n.Agent.PutGrant(k.uid, *g)
	if err != nil {
		n.mu.Lock()
		k.session = 0 // the agent may have the grant before, or this one: whatever comes next is put
		n.mu.Unlock()
		return fmt.Errorf("put the grant of the pod: %w", err)
	}
	n.mu.Lock()
	needed, failed := lasting(pod, k.restart), k.failed
	k.put, k.session, k.restart, k.because = g, session, maps.Clone(changed.Restart), changed.Because
	k.failed, k.retry = changed.Failed, time.Now().Add(n.Again)
	delete(n.waiting, k.uid)
	if k.registers != registers {
		k.session = 0 // the answer may be about the container before: handle wakes the pod, and the grant is put again
	}
	n.mu.Unlock()
	n.Log.Debug("grant put", "pod", client.ObjectKeyFromObject(pod), "refused", g.Refused, "failed", len(changed.Failed))
	if len(changed.Withdrawn) > 0 {
		n.tell(pod, corev1.EventTypeWarning, ReasonWithdrawn, "rules are no longer in force: "+lines(changed.Withdrawn)+because(g.Refused))
	}
	if needs := lasting(pod, changed.Restart); len(needs) > 0 && !reflect.DeepEqual(needs, needed) {
		n.tell(pod, corev1.EventTypeNormal, ReasonRestart, restartText(needs, changed.Because))
	}
	if len(changed.Moved) > 0 {
		n.tell(pod, corev1.EventTypeNormal, ReasonMoved, "servers have to listen again, as endpoints have other addresses or ports: "+lines(changed.Moved))
	}
	if len(changed.Failed) > 0 && !slices.Equal(changed.Failed, failed) {
		n.tell(pod, corev1.EventTypeWarning, ReasonFailed, failedText(changed.Failed))
	}
	return nil
}

// lasting returns what containers need that are there yet, or come again. Once a pod is initialized, its init containers
// are over, but for those that always run. The agent does not know when a container without rules ends.
func lasting(pod *corev1.Pod, restart map[string][]string) map[string][]string {
	if !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodInitialized && c.Status == corev1.ConditionTrue
	}) {
		return maps.Clone(restart)
	}
	left := maps.Clone(restart)
	for _, c := range pod.Spec.InitContainers {
		if c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			delete(left, c.Name)
		}
	}
	return left
}

// restartText says what needs new containers, and the first reason of these.
func restartText(needs map[string][]string, because map[string]string) string {
	text := "rules need new containers: " + lines(needs)
	for _, c := range slices.Sorted(maps.Keys(needs)) {
		if because[c] != "" {
			return text + "; " + because[c]
		}
	}
	return text
}

// failedText says what of a grant is not in force, and why.
func failedText(list []api.GrantFailure) string {
	var texts []string
	for _, f := range list {
		what := strings.TrimSpace(f.Container + " " + f.Rule)
		if what != "" {
			what += ": "
		}
		texts = append(texts, what+f.Reason)
	}
	return "not all of the grant is in force, and it is tried again: " + strings.Join(texts, "; ")
}

func because(refused string) string {
	if refused == "" {
		return ""
	}
	return "; " + refused
}

// lines writes rules of containers in one line.
func lines(rules map[string][]string) string {
	var list []string
	for _, c := range slices.Sorted(maps.Keys(rules)) {
		list = append(list, c+" "+strings.Join(rules[c], ", "))
	}
	return strings.Join(list, "; ")
}
