package node

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/tsugiki/tsugiki/kube/grant"
)

// peers returns the pods of the node that rules may select, by the caches. They are listed again after a pod or a
// namespace has changed so that they are others.
func (n *Node) peers(ctx context.Context) (*grant.Peers, error) {
	n.mu.Lock()
	now, change := n.peersNow, n.peerChanges
	n.mu.Unlock()
	if now != nil {
		return now, nil
	}
	list, err := n.listPeers(ctx)
	if err != nil {
		return nil, err
	}
	now = grant.NewPeers(list)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.peerChanges == change { // or the list may be older than the change
		n.peersNow = now
	}
	return now, nil
}

func (n *Node) listPeers(ctx context.Context) (list []grant.Peer, err error) {
	var namespaces metav1.PartialObjectMetadataList
	namespaces.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
	var pods corev1.PodList
	for _, list := range []client.ObjectList{&namespaces, &pods} {
		if err := n.client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, err
		}
	}
	labels := map[string]map[string]string{}
	for i := range namespaces.Items {
		labels[namespaces.Items[i].Name] = namespaces.Items[i].Labels
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if of, known := labels[p.Namespace]; known && !ended(p) {
			list = append(list, grant.Peer{
				UID: string(p.UID), Namespace: p.Namespace, NamespaceLabels: of, Labels: p.Labels, Grafted: n.concerns(p), Addrs: addressesOf(p),
			})
		}
	}
	return list, nil
}

// addressesOf returns the addresses of a pod. One in the node's network has none of its own.
func addressesOf(p *corev1.Pod) (list []netip.Addr) {
	if p.Spec.HostNetwork {
		return nil
	}
	for _, ip := range p.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			list = append(list, a.Unmap())
		}
	}
	return list
}

// podsWithPeers returns the pods whose rules select pods of the node, which have changed.
func (n *Node) podsWithPeers(context.Context, client.Object) (requests []reconcile.Request) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.peersNow = nil
	n.peerChanges++
	for key, pods := range n.known {
		if slices.ContainsFunc(pods, func(k *known) bool { return k.selects }) {
			requests = append(requests, reconcile.Request{NamespacedName: key})
		}
	}
	return requests
}

// peerChanged passes those events of a pod that change what rules that select it mean.
var peerChanged = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, isPod := e.ObjectOld.(*corev1.Pod)
		after, _ := e.ObjectNew.(*corev1.Pod)
		return isPod && after != nil && (before.UID != after.UID || ended(before) != ended(after) || grant.Asks(before) != grant.Asks(after) ||
			!maps.Equal(before.Labels, after.Labels) || !slices.Equal(before.Status.PodIPs, after.Status.PodIPs))
	},
}
