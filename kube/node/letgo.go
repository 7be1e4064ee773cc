package node

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/kube/grant"
)

// asksNoMore tells whether an object is a pod that runs, that is not to be grafted, and whose status says
// that it is: somebody has taken its annotation away.
func (n *Node) asksNoMore(o client.Object) bool {
	p, is := o.(*corev1.Pod)
	return is && !n.concerns(p) && !ended(p) && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == grant.ConditionPorts && c.Status == corev1.ConditionTrue || c.Type == ConditionGrafted && c.Reason != ReasonNotAsked
	})
}

// letGo takes the grant of a pod that asks no more, and then what its status says of it. After that, another
// pod may have its ports.
func (n *Node) letGo(ctx context.Context, pod *corev1.Pod) error {
	if err := n.revoke(string(pod.UID)); err != nil {
		return err
	}
	conditions := []corev1.PodCondition{{
		Type: ConditionGrafted, Status: corev1.ConditionFalse, Reason: ReasonNotAsked, LastTransitionTime: metav1.Now(),
		Message: "the pod does not have the annotation " + api.AnnotationGraft + " any more",
	}}
	changes(pod, &conditions[0])
	if ports := portsCondition(pod, ""); ports != nil && changes(pod, ports) {
		conditions = append(conditions, *ports)
	}
	return n.update(ctx, pod, func(now *unstructured.Unstructured) error {
		annotations := now.GetAnnotations()
		delete(annotations, AnnotationPorts)
		now.SetAnnotations(annotations)
		return setConditions(now, conditions)
	})
}

// waits tells whether a container of a pod waits for a grant.
func (n *Node) waits(uid string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.waiting[uid].IsZero()
}

// refuseOther refuses the container that waits for the grant of a pod which is not to be grafted: what made
// the container has an annotation that was taken away. Without a refusal it would wait for as long as it may,
// and NRI has all containers of the node wait meanwhile. The agent then tells of the refusal, and Reconcile
// forgets the pod again (forgetOthers).
func (n *Node) refuseOther(pod *corev1.Pod) error {
	k := n.know(pod)
	_, err := n.Agent.PutGrant(k.uid, api.Grant{
		Namespace: pod.Namespace, Name: pod.Name,
		Refused: "the pod does not have the annotation " + api.AnnotationGraft + " any more: write it again, or delete the pod",
	})
	if err == nil {
		n.mu.Lock()
		delete(n.waiting, k.uid)
		n.mu.Unlock()
	}
	return err
}
