package node

import (
	"context"
	"encoding/json"
	"net/netip"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tsugiki/tsugiki/kube/grant"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

const (
	// AnnotationPorts has the ports of the node that a pod was given, as JSON: a list of Port.
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
)

// messageMax is the longest message of an event, in bytes.
const messageMax = 1000

// Port is a port of a pod, and where it is on the node.
type Port struct {
	Container string            `json:"container"`
	Port      uint16            `json:"port"`
	Protocol  v1alpha1.Protocol `json:"protocol"`
	Host      netip.AddrPort    `json:"host"`
}

// writeStatus writes the ports and the condition of a pod, if they are others.
func (n *Node) writeStatus(ctx context.Context, pod *corev1.Pod, k *known, d *grant.Decision) error {
	var ports []Port
	for _, s := range d.Served {
		ports = append(ports, Port{s.Container, s.Port, s.Protocol, s.Host})
	}
	annotation := ""
	if len(ports) > 0 {
		text, err := json.Marshal(ports)
		if err != nil {
			return err
		}
		annotation = string(text)
	}
	c := n.condition(k, d)
	same := pod.Annotations[AnnotationPorts] == annotation
	for _, has := range pod.Status.Conditions {
		if has.Type == ConditionGrafted && has.Status == c.Status {
			c.LastTransitionTime = has.LastTransitionTime
			if same && has.Reason == c.Reason && has.Message == c.Message {
				return nil
			}
		}
	}
	patch := map[string]any{
		// With another UID it is another pod, and the API server refuses the patch.
		"metadata": map[string]any{"uid": pod.UID, "annotations": map[string]any{AnnotationPorts: orNull(annotation)}},
		"status":   map[string]any{"conditions": []corev1.PodCondition{c}},
	}
	data, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	err = n.client.Status().Patch(ctx, pod.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, data))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // the pod's end wakes it
	}
	return err
}

// orNull is null in a patch, which removes what is there, for an empty text.
func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func (n *Node) condition(k *known, d *grant.Decision) corev1.PodCondition {
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
	return c
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
