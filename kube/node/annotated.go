package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tsugiki/tsugiki/api"
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
// so a container is missing only if it has not been found for a time (MissingAfter).
//
// A container that has run while no policy gave it rules is none of the agent's either. With rules, it
// needs to be made anew.

// MissingAfter is for how long a running container is looked for before it is reported that the agent does
// not know it.
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

// byAnnotation tells whether a pod asks by the annotation, and by no RuntimeClass of ours.
func (n *Node) byAnnotation(p *corev1.Pod) bool { return grant.Asks(p) && !n.ofOurs(p) }

// graceFor is how long a container of a pod waits before the pod is refused.
func (n *Node) graceFor(p *corev1.Pod) time.Duration {
	if n.byAnnotation(p) {
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
	if !n.byAnnotation(pod) {
		return 0, nil
	}
	open := n.unknown(pod, k, d)
	if len(open) == 0 {
		n.found(k, nil, &looked{})
		return 0, nil
	}
	list, err := n.Agent.Containers()
	if err != nil {
		return 0, fmt.Errorf("ask the agent for its containers: %w", err)
	}
	found, next := map[string]string{}, looked{since: map[string]time.Time{}, missing: map[string]string{}, late: map[string]string{}}
	n.mu.Lock()
	before, unruled := k.looked, maps.Clone(k.unruled)
	n.mu.Unlock()
	for _, s := range open {
		id := idOf(&s)
		ours := slices.ContainsFunc(list, func(c api.Container) bool { return c.ID == id && c.PID != 0 })
		since, looked := before.since[id]
		if !looked {
			since = time.Now()
		}
		next.since[id] = since
		wait := n.MissingAfter - time.Since(since)
		switch {
		case ours:
			found[s.Name] = id
		case unruled[s.Name] == id:
			next.late[s.Name] = id
		case wait > 0:
			if again == 0 || wait < again {
				again = wait
			}
		default:
			next.missing[s.Name] = id
		}
	}
	n.found(k, found, &next)
	if late := fresh(before.late, next.late); len(late) > 0 {
		n.tell(pod, corev1.EventTypeNormal, ReasonRestart, lateMessage(late))
	}
	if missing := fresh(before.missing, next.missing); len(missing) > 0 {
		reason, message := ReasonMissing, missingMessage(missing)
		if d.Grant.Refused != "" {
			reason, message = ReasonRefused, fmt.Sprintf("not grafted, and in the pod's own network alone: container %s; %s", strings.Join(missing, ", "), d.Grant.Refused)
		}
		n.tell(pod, corev1.EventTypeWarning, reason, message)
	}
	return again, nil
}

// looked is what is known of containers that run, are to be grafted and have not been found among the
// agent's.
type looked struct {
	since   map[string]time.Time // of the first look, by id
	missing map[string]string    // ids of those that were made without the plugin, by name
	late    map[string]string    // ids of those that had no rules when they were made, by name
}

func lateMessage(names []string) string {
	return fmt.Sprintf("rules need new containers: %s; no policy gave it rules when it was made", strings.Join(names, ", "))
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
// among the agent's. If the pod is refused, none of its containers is to run, but for those that have begun
// without rules.
func (n *Node) unknown(pod *corev1.Pod, k *known, d *grant.Decision) (open []corev1.ContainerStatus) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range pod.Status.ContainerStatuses {
		id := idOf(&s)
		_, has := d.Grant.Containers[s.Name]
		switch {
		case s.State.Running == nil || k.grafted[s.Name] == id:
		case has || d.Grant.Refused != "" && k.unruled[s.Name] != id:
			open = append(open, s)
		case d.Grant.Refused == "":
			if k.unruled == nil {
				k.unruled = map[string]string{}
			}
			k.unruled[s.Name] = id
		}
	}
	return open
}

// found notes which containers the agent has, and what is known of the others.
func (n *Node) found(k *known, found map[string]string, others *looked) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if k.grafted == nil {
		k.grafted = map[string]string{}
	}
	maps.Copy(k.grafted, found)
	k.looked = *others
}

// fresh returns the names of the containers that are not among those before.
func fresh(before, now map[string]string) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if before[name] != now[name] {
			names = append(names, name)
		}
	}
	return names
}

// reachable returns the ports at which somebody listens, or will: those of rules that the agent has put in force for
// the containers that run. Of a pod that asks by the annotation, these are the ports of containers that are known to
// be grafted. A container that has ended keeps them: the pod is not ready meanwhile.
func (n *Node) reachable(pod *corev1.Pod, k *known, d *grant.Decision) []grant.Served {
	n.mu.Lock()
	defer n.mu.Unlock()
	served := slices.DeleteFunc(slices.Clone(d.Served), k.lacks)
	if !n.byAnnotation(pod) {
		return served
	}
	running := map[string]string{}
	for _, s := range pod.Status.ContainerStatuses {
		if s.State.Running != nil {
			running[s.Name] = idOf(&s)
		}
	}
	return slices.DeleteFunc(served, func(s grant.Served) bool {
		was, id := k.grafted[s.Container], running[s.Container]
		return was == "" || id != "" && id != was
	})
}

// lacks tells whether a container is known not to have the rule of a port. The caller holds mu.
func (k *known) lacks(s grant.Served) bool {
	is := func(rule string) bool { return strings.HasSuffix(rule, "="+s.Rule) }
	return slices.ContainsFunc(k.restart[s.Container], is) ||
		slices.ContainsFunc(k.failed, func(f api.GrantFailure) bool { return f.Container == s.Container && is(f.Rule) })
}

// notYet is the condition of a pod that asks by the annotation and whose containers are not known to be
// grafted; nil: they are. The caller holds mu.
func (k *known) notYet(d *grant.Decision) *corev1.PodCondition {
	c := corev1.PodCondition{Type: ConditionGrafted, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Now()}
	switch {
	case len(k.looked.missing) > 0:
		c.Reason, c.Message = ReasonMissing, missingMessage(slices.Sorted(maps.Keys(k.looked.missing)))
	case len(k.looked.late) > 0:
		c.Reason, c.Message = ReasonRestart, lateMessage(slices.Sorted(maps.Keys(k.looked.late)))
	case len(k.grafted) == 0 && len(d.Grant.Containers) > 0:
		c.Reason, c.Message = ReasonPending, "no container with rules has begun yet"
	default:
		return nil
	}
	return &c
}

// ofOthers tells whether a pod that asks by the annotation has a RuntimeClass that is none of ours.
func (n *Node) ofOthers(pod *corev1.Pod) bool {
	return n.byAnnotation(pod) && pod.Spec.RuntimeClassName != nil
}
