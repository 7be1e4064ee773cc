package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tsugiki/tsugiki/kube/grant"
)

// # Pods that ask by an annotation
//
// Of a pod with one of our RuntimeClasses, no container runs that the agent does not know. containerd
// makes containers of the others without the plugin of NRI, if that does not run. So a container that
// runs, by the pod's status, is looked for among the agent's. Until it is found there, the pod has no
// port of the node to show: nobody listens at it.
//
// The status is older than what the agent knows. A container that has begun is known to the agent, so it
// is asked once for each. One that has ended may still run by the status, and the agent knows it no more:
// so a container is missing only if it has run for a time (MissingAfter).

// MissingAfter is how long a container runs before it is reported that the agent does not know it.
const MissingAfter = 5 * time.Second

// annotatedGrace is the longest Grace of pods without a RuntimeClass: the plugin of NRI may not let
// containerd wait.
const annotatedGrace = 500 * time.Millisecond

const (
	// ReasonMissing is of containers that were to be grafted, and are not.
	ReasonMissing = "GraftMissing"
	// ReasonPending is of pods of which no container that has rules is known to run under them.
	ReasonPending = "GraftPending"
)

// ofOurs tells whether a pod has one of our RuntimeClasses.
func (n *Node) ofOurs(p *corev1.Pod) bool {
	return p.Spec.RuntimeClassName != nil && slices.Contains(n.Classes, *p.Spec.RuntimeClassName)
}

// annotated tells whether a pod asks by the annotation, and by no RuntimeClass of ours.
func (n *Node) annotated(p *corev1.Pod) bool { return grant.Asks(p) && !n.ofOurs(p) }

// graceFor is how long a container of a pod waits before the pod is refused.
func (n *Node) graceFor(p *corev1.Pod) time.Duration {
	if n.annotated(p) {
		return min(n.Grace, annotatedGrace)
	}
	return n.Grace
}

// keepRunning keeps of the status of a pod which containers run, if it asks by the annotation.
func keepRunning(p *corev1.Pod) func() {
	if !grant.Asks(p) {
		return func() {}
	}
	var running []corev1.ContainerStatus
	for _, s := range slices.Concat(p.Status.ContainerStatuses, p.Status.InitContainerStatuses) {
		if s.State.Running != nil {
			running = append(running, corev1.ContainerStatus{Name: s.Name, ContainerID: s.ContainerID, State: s.State})
		}
	}
	return func() { p.Status.ContainerStatuses = running }
}

// watchOver looks for the running containers of a pod among the agent's, and returns when it has to look
// again; 0: not before the pod changes.
func (n *Node) watchOver(pod *corev1.Pod, k *known, d *grant.Decision) (again time.Duration, err error) {
	if !n.annotated(pod) {
		return 0, nil
	}
	open := n.unknown(pod, k, d)
	if len(open) == 0 {
		n.found(k, nil, nil)
		return 0, nil
	}
	list, err := n.Agent.Containers()
	if err != nil {
		return 0, fmt.Errorf("ask the agent for its containers: %w", err)
	}
	found, missing := map[string]string{}, map[string]string{}
	for _, s := range open {
		id := idOf(&s)
		ours := false
		for i := range list {
			ours = ours || list[i].ID == id && list[i].PID != 0
		}
		wait := n.MissingAfter - time.Since(s.State.Running.StartedAt.Time)
		switch {
		case ours:
			found[s.Name] = id
		case wait > 0:
			if again == 0 || wait < again {
				again = wait
			}
		default:
			missing[s.Name] = id
		}
	}
	if fresh := n.found(k, found, missing); len(fresh) > 0 {
		reason, message := ReasonMissing, missingMessage(fresh)
		if d.Grant.Refused != "" {
			reason, message = ReasonRefused, fmt.Sprintf("not grafted, and in the pod's own network alone: container %s; %s", strings.Join(fresh, ", "), d.Grant.Refused)
		}
		n.tell(pod, corev1.EventTypeWarning, reason, message)
	}
	return again, nil
}

func missingMessage(names []string) string {
	return fmt.Sprintf("not grafted, and in the pod's own network alone: container %s, which was made while tsugiki-nri did not run on the node; delete the pod, and see whether tsugiki-nri runs",
		strings.Join(names, ", "))
}

// idOf returns the engine's id of a container.
func idOf(s *corev1.ContainerStatus) string {
	_, id, _ := strings.Cut(s.ContainerID, "://")
	return id
}

// unknown returns the containers of a pod that run and are to be grafted, and that have not been found
// among the agent's. If the pod is refused, none of its containers is to run.
func (n *Node) unknown(pod *corev1.Pod, k *known, d *grant.Decision) (open []corev1.ContainerStatus) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range pod.Status.ContainerStatuses {
		_, has := d.Grant.Containers[s.Name]
		if (has || d.Grant.Refused != "") && s.State.Running != nil && k.grafted[s.Name] != idOf(&s) {
			open = append(open, s)
		}
	}
	return open
}

// found notes which containers the agent has, and which are missing. It returns the names of those that
// were not missing before.
func (n *Node) found(k *known, found, missing map[string]string) (fresh []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		if k.missing[name] != missing[name] {
			fresh = append(fresh, name)
		}
	}
	if k.grafted == nil {
		k.grafted = map[string]string{}
	}
	maps.Copy(k.grafted, found)
	k.missing = missing
	return fresh
}

// reachable returns the ports at which somebody listens, or will. Of a pod that asks by the annotation,
// these are the ports of containers that are known to be grafted.
func (n *Node) reachable(pod *corev1.Pod, k *known, d *grant.Decision) []grant.Served {
	if !n.annotated(pod) {
		return d.Served
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	running := map[string]string{}
	for _, s := range pod.Status.ContainerStatuses {
		running[s.Name] = idOf(&s)
	}
	return slices.DeleteFunc(slices.Clone(d.Served), func(s grant.Served) bool {
		id := running[s.Container]
		return id == "" || k.grafted[s.Container] != id
	})
}

// notYet is the condition of a pod that asks by the annotation and whose containers are not known to be
// grafted; nil: they are. The caller holds mu.
func (k *known) notYet(d *grant.Decision) *corev1.PodCondition {
	c := corev1.PodCondition{Type: ConditionGrafted, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Now()}
	switch {
	case len(k.missing) > 0:
		c.Reason, c.Message = ReasonMissing, missingMessage(slices.Sorted(maps.Keys(k.missing)))
	case len(k.grafted) == 0 && len(d.Grant.Containers) > 0:
		c.Reason, c.Message = ReasonPending, "no container with rules has begun yet"
	default:
		return nil
	}
	return &c
}

// ofOthers tells whether a pod that asks by the annotation has a RuntimeClass that is none of ours.
func (n *Node) ofOthers(pod *corev1.Pod) bool {
	return n.annotated(pod) && pod.Spec.RuntimeClassName != nil
}
