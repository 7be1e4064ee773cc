package node

import (
	"context"
	"encoding/json"
	"slices"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tsugiki/tsugiki/kube/grant"
)

const (
	// AnnotationPorts has what grant.ConditionPorts has, for the pod itself: it can have annotations
	// as a file (downwardAPI), and no conditions. Nothing of ours reads it: pods' authors may write it.
	AnnotationPorts = "kube.tsugiki.dev/ports"
	// ConditionGrafted is the type of a pod's condition: whether it has what the resources say. Pods
	// may have it as a readiness gate.
	ConditionGrafted = "tsugiki.dev/Grafted"
)

// Reasons of the condition and of events.
const (
	ReasonGranted   = "Granted"
	ReasonRefused   = "GraftRefused"
	ReasonWithdrawn = "GraftWithdrawn"
	ReasonRestart   = "GraftRestartNeeded"
	ReasonNoPorts   = "NoPorts" // of grant.ConditionPorts
)

// messageMax is the longest message of an event, in bytes.
const messageMax = 1000

// writeStatus writes the ports and the conditions of a pod, if they are others.
func (n *Node) writeStatus(ctx context.Context, pod *corev1.Pod, k *known, d *grant.Decision) error {
	ports := ""
	if len(d.Served) > 0 {
		text, err := json.Marshal(d.Served)
		if err != nil {
			return err
		}
		ports = string(text)
	}
	conditions := []corev1.PodCondition{} // null would take all away
	for _, c := range []*corev1.PodCondition{n.condition(k, d), portsCondition(pod, ports)} {
		if c != nil && changes(pod, c) {
			conditions = append(conditions, *c)
		}
	}
	if len(conditions) == 0 && pod.Annotations[AnnotationPorts] == ports {
		return nil
	}
	patch := map[string]any{
		// With another UID it is another pod, and the API server refuses the patch.
		"metadata": map[string]any{"uid": pod.UID, "annotations": map[string]any{AnnotationPorts: orNull(ports)}},
		"status":   map[string]any{"conditions": conditions},
	}
	data, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	err = n.client.Status().Patch(ctx, pod.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, data))
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil // the pod's end wakes it
	case apierrors.IsInvalid(err): // the UID may not change: another pod has the name by now, and wakes it
		n.Log.Warn("the status of the pod is not written", "pod", client.ObjectKeyFromObject(pod), "uid", pod.UID, "err", err)
		return nil
	}
	return err
}

// changes tells whether a pod has a condition in another state. If the status is the same, the
// condition gets the time of its last transition from the pod.
func changes(pod *corev1.Pod, c *corev1.PodCondition) bool {
	for _, has := range pod.Status.Conditions {
		if has.Type == c.Type && has.Status == c.Status {
			c.LastTransitionTime = has.LastTransitionTime
			return has.Reason != c.Reason || has.Message != c.Message
		}
	}
	return true
}

// portsCondition is the condition with the ports of a pod; nil if the pod has none, and had none.
func portsCondition(pod *corev1.Pod, ports string) *corev1.PodCondition {
	c := corev1.PodCondition{Type: grant.ConditionPorts, Status: corev1.ConditionTrue, Reason: ReasonGranted, Message: ports, LastTransitionTime: metav1.Now()}
	if ports == "" {
		c.Status, c.Reason = corev1.ConditionFalse, ReasonNoPorts
		if !slices.ContainsFunc(pod.Status.Conditions, func(has corev1.PodCondition) bool { return has.Type == c.Type }) {
			return nil
		}
	}
	return &c
}

// orNull is null in a patch, which removes what is there, for an empty text.
func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func (n *Node) condition(k *known, d *grant.Decision) *corev1.PodCondition {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := corev1.PodCondition{
		Type: ConditionGrafted, Status: corev1.ConditionTrue, Reason: ReasonGranted, LastTransitionTime: metav1.Now(),
		Message: "the pod has the rules of the policies that select it",
	}
	switch {
	case d.Grant.Refused != "":
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, ReasonRefused, d.Grant.Refused
	case len(k.restart) > 0:
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, ReasonRestart, "rules need new containers: "+lines(k.restart)
	}
	return &c
}

// tell writes an event on a pod.
func (n *Node) tell(pod *corev1.Pod, kind, reason, message string) {
	for i := min(len(message), messageMax); i < len(message); i-- {
		if utf8.RuneStart(message[i]) {
			message = message[:i]
		}
	}
	about := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
	n.events.Eventf(about, nil, kind, reason, "Graft", "%s", message)
}
