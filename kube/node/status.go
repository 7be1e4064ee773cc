package node

import (
	"context"
	"encoding/json"
	"slices"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/retry"
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
	ReasonMoved     = "GraftMoved"
	ReasonFailed    = "GraftFailed"
	ReasonNoPorts   = "NoPorts" // of grant.ConditionPorts
	ReasonNotAsked  = "GraftNotAsked"
)

// messageMax is the longest message of an event, and the longest refusal by the agent, in bytes.
const messageMax = 1000

// writeStatus writes the ports and the conditions of a pod, if they are others.
func (n *Node) writeStatus(ctx context.Context, pod *corev1.Pod, k *known, d *grant.Decision) error {
	ports := ""
	if served := n.reachable(pod, k, d); len(served) > 0 {
		text, err := json.Marshal(served)
		if err != nil {
			return err
		}
		ports = string(text)
	}
	var conditions []corev1.PodCondition
	for _, c := range []*corev1.PodCondition{n.condition(pod, k, d), portsCondition(pod, ports)} {
		if c != nil && changes(pod, c) {
			conditions = append(conditions, *c)
		}
	}
	if len(conditions) == 0 && pod.Annotations[AnnotationPorts] == ports {
		return nil
	}
	return n.update(ctx, pod, func(now *unstructured.Unstructured) error {
		annotations := now.GetAnnotations()
		if ports == "" {
			delete(annotations, AnnotationPorts)
		} else {
			if annotations == nil {
				annotations = map[string]string{}
			}
			annotations[AnnotationPorts] = ports
		}
		now.SetAnnotations(annotations)
		return setConditions(now, conditions)
	})
}

// setConditions replaces conditions of a pod, by their types.
func setConditions(pod *unstructured.Unstructured, conditions []corev1.PodCondition) error {
	list, _, err := unstructured.NestedSlice(pod.Object, "status", "conditions")
	if err != nil {
		return err
	}
	for i := range conditions {
		c, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&conditions[i])
		if err != nil {
			return err
		}
		list = slices.DeleteFunc(list, func(has any) bool {
			old, is := has.(map[string]any)
			return is && old["type"] == c["type"]
		})
		list = append(list, c)
	}
	return unstructured.SetNestedSlice(pod.Object, list, "status", "conditions")
}

// update changes the status of a pod. A pod that has gone, also if another one has its name, needs no
// status.
//
// It is no patch. For a moment before a pod is deleted, the API server has it with a deletion time and
// no grace period. A patch that finds it so has the API server delete the pod by its name, without a
// look at the UID (deleteWithoutFinalizers of k8s.io/apiserver, 1.36): it deletes the next pod of the
// name, if that has been created meanwhile. The UID of an update is a precondition of both.
//
// An update has the whole status. So it is read and written without corev1.Pod, which would lose fields
// of an API server that is newer.
func (n *Node) update(ctx context.Context, pod *corev1.Pod, change func(*unstructured.Unstructured) error) error {
	return client.IgnoreNotFound(retry.RetryOnConflict(retry.DefaultRetry, func() error {
		now := &unstructured.Unstructured{}
		now.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
		if err := n.live.Get(ctx, client.ObjectKeyFromObject(pod), now); err != nil || now.GetUID() != pod.UID {
			return err
		}
		if err := change(now); err != nil {
			return err
		}
		return n.client.Status().Update(ctx, now)
	}))
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

// condition is the condition ConditionGrafted of a pod; nil if it stays as it is.
func (n *Node) condition(pod *corev1.Pod, k *known, d *grant.Decision) *corev1.PodCondition {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := corev1.PodCondition{
		Type: ConditionGrafted, Status: corev1.ConditionTrue, Reason: ReasonGranted, LastTransitionTime: metav1.Now(),
		Message: "the pod has the rules of the policies that select it",
	}
	needs := lasting(pod, k.restart)
	switch {
	case d.Grant.Refused != "":
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, ReasonRefused, d.Grant.Refused
		if len(k.failed) > 0 {
			c.Message = clip(c.Message + "; " + failedText(k.failed))
		}
	case len(k.failed) > 0:
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, ReasonFailed, failedText(k.failed)
		if len(needs) > 0 {
			c.Message += "; " + restartText(needs, k.because)
		}
		c.Message = clip(c.Message)
	case len(needs) > 0:
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, ReasonRestart, clip(restartText(needs, k.because))
	case len(d.Awaits) > 0:
		return nil // it stays as it is, until the endpoints come or the pod is refused
	case n.byAnnotation(pod):
		if not := k.notYet(d); not != nil {
			c = *not
		}
	}
	return &c
}

// tell writes an event on a pod.
func (n *Node) tell(pod *corev1.Pod, kind, reason, message string) {
	about := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
	n.events.Eventf(about, nil, kind, reason, "Graft", "%s", clip(message))
}

// clip ends a message after messageMax bytes.
func clip(message string) string {
	for i := min(len(message), messageMax); i < len(message); i-- {
		if utf8.RuneStart(message[i]) {
			message = message[:i]
		}
	}
	return message
}
