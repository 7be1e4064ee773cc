package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tsugiki/tsugiki/kube/grant"
)

// # EndpointSlices
//
// All endpoints of a slice have the same ports, and pods of a node have different ones. So there is
// a slice for each pod, Service and address. The pod owns it: the garbage collector removes it if
// this node cannot.

// writeSlices has the slices of a pod be those of its served ports. A pod that is gone has none.
func (n *Node) writeSlices(ctx context.Context, pod *corev1.Pod, served []grant.Served) error {
	want := n.slicesOf(pod, served)
	var has discoveryv1.EndpointSliceList
	err := n.client.List(ctx, &has, client.InNamespace(pod.Namespace), client.MatchingLabels{labelPod: string(pod.UID)})
	if err != nil {
		return err
	}
	for i := range has.Items {
		old := &has.Items[i]
		next := want[old.Name]
		delete(want, old.Name)
		switch {
		case next == nil:
			err = n.client.Delete(ctx, old, client.Preconditions{UID: &old.UID})
		case !sameSlice(old, next):
			next.ResourceVersion = old.ResourceVersion
			err = n.client.Update(ctx, next)
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if err := n.client.Create(ctx, want[name]); err != nil && !apierrors.IsAlreadyExists(err) { // the cache may be older
			return err
		}
	}
	return nil
}

func sameSlice(a, b *discoveryv1.EndpointSlice) bool {
	return apiequality.Semantic.DeepEqual(a.Endpoints, b.Endpoints) && apiequality.Semantic.DeepEqual(a.Ports, b.Ports) &&
		maps.Equal(a.Labels, b.Labels) && a.Annotations[annotationPod] == b.Annotations[annotationPod]
}

// slicesOf returns the slices of a pod, by name.
func (n *Node) slicesOf(pod *corev1.Pod, served []grant.Served) map[string]*discoveryv1.EndpointSlice {
	all := map[string]*discoveryv1.EndpointSlice{}
	ready := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
	for i := range served {
		s := &served[i]
		if s.Service == nil || !s.Host.Addr().IsValid() {
			continue
		}
		name := sliceName(s.Service.Name, string(pod.UID), s.Host.Addr())
		if all[name] == nil {
			all[name] = n.slice(name, pod, s, ready)
		}
		port, protocol, portName := int32(s.Host.Port()), corev1.Protocol(s.Protocol), s.Service.Port
		all[name].Ports = append(all[name].Ports, discoveryv1.EndpointPort{Name: &portName, Port: &port, Protocol: &protocol})
	}
	return all
}

func (n *Node) slice(name string, pod *corev1.Pod, s *grant.Served, ready bool) *discoveryv1.EndpointSlice {
	terminating, available := pod.DeletionTimestamp != nil, ready && pod.DeletionTimestamp == nil
	node := n.Node.Name
	family := discoveryv1.AddressTypeIPv4
	if s.Host.Addr().Is6() {
		family = discoveryv1.AddressTypeIPv6
	}
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: pod.Namespace,
			Labels: map[string]string{
				discoveryv1.LabelServiceName: s.Service.Name, discoveryv1.LabelManagedBy: labelManagedBy,
				labelNode: nodeLabel(node), labelPod: string(pod.UID),
			},
			Annotations:     map[string]string{annotationPod: pod.Name},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
		},
		AddressType: family,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses:  []string{s.Host.Addr().String()},
			Conditions: discoveryv1.EndpointConditions{Ready: &available, Serving: &ready, Terminating: &terminating},
			NodeName:   &node,
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		}},
	}
}

// sliceName names the slice of a pod, a Service and an address.
func sliceName(service, pod string, addr netip.Addr) string {
	sum := sha256.Sum256([]byte(pod + "\x00" + addr.String()))
	return service + "-" + hex.EncodeToString(sum[:8])
}
