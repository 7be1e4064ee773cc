package node

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/tsugiki/tsugiki/kube/caches"
	"github.com/tsugiki/tsugiki/kube/grant"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// CacheOptions say what a node watches, and what it keeps of it: its own pods, all policies and
// endpoints, and the metadata of namespaces.
func CacheOptions(node string) cache.Options {
	return cache.Options{
		ReaderFailOnMissingInformer: true,
		DefaultTransform:            strip,
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}: {Field: fields.OneTermEqualSelector("spec.nodeName", node), Transform: stripPod},
		},
	}
}

// watchAll begins all watches before the caches start, so that they are complete when Start is called.
func watchAll(c cache.Cache) error {
	for _, o := range []client.Object{&corev1.Pod{}, &v1alpha1.GraftPolicy{}, &v1alpha1.GraftEndpoint{}, caches.Namespace()} {
		if _, err := c.GetInformer(context.Background(), o, cache.BlockUntilSynced(false)); err != nil {
			return err
		}
	}
	return nil
}

// strip takes away what no decision needs.
func strip(object any) (any, error) {
	switch o := object.(type) {
	case *v1alpha1.GraftPolicy:
		o.Status = v1alpha1.GraftPolicyStatus{}
	case *v1alpha1.GraftEndpoint:
		o.Status = v1alpha1.GraftEndpointStatus{}
	}
	return caches.Strip(object)
}

// stripPod keeps of a pod what decisions and its status need.
func stripPod(object any) (any, error) {
	p, is := object.(*corev1.Pod)
	if !is {
		return object, nil
	}
	ours, keep := p.Annotations[AnnotationPorts], keepRunning(p)
	caches.StripPod(p, ConditionGrafted, grant.ConditionPorts, corev1.PodInitialized)
	keep()
	if ours != "" {
		if p.Annotations == nil {
			p.Annotations = map[string]string{}
		}
		p.Annotations[AnnotationPorts] = ours
	}
	return p, nil
}

// concerns tells whether an object is a pod that is grafted.
func (n *Node) concerns(o client.Object) bool {
	p, is := o.(*corev1.Pod)
	return is && (n.ofOurs(p) || grant.Asks(p))
}

// ofConcern passes the events of pods that ask to be grafted, or that have asked for it before.
func (n *Node) ofConcern() predicate.Funcs {
	concerns := func(o client.Object) bool { return n.concerns(o) || n.asksNoMore(o) }
	p := predicate.NewPredicateFuncs(concerns)
	p.UpdateFunc = func(e event.UpdateEvent) bool { return concerns(e.ObjectOld) || concerns(e.ObjectNew) }
	return p
}

// podsIn returns the grafted pods of a namespace; all, if the name is empty.
func (n *Node) podsIn(ctx context.Context, namespace string) (requests []reconcile.Request) {
	var list corev1.PodList
	if err := n.client.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		n.Log.Error("list pods of the cache", "err", err)
		return nil
	}
	for i := range list.Items {
		if n.concerns(&list.Items[i]) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
}

func (n *Node) podsOfNamespace(ctx context.Context, o client.Object) []reconcile.Request {
	return n.podsIn(ctx, o.GetNamespace())
}

func (n *Node) podsInNamespace(ctx context.Context, o client.Object) []reconcile.Request {
	return append(n.podsIn(ctx, o.GetName()), n.podsWithPeers(ctx, o)...)
}

// podsOfEndpoint returns the pods whose policies name an endpoint.
func (n *Node) podsOfEndpoint(_ context.Context, o client.Object) (requests []reconcile.Request) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for key, pods := range n.known {
		if slices.ContainsFunc(pods, func(k *known) bool { _, is := k.endpoints[o.GetName()]; return is }) {
			requests = append(requests, reconcile.Request{NamespacedName: key})
		}
	}
	return requests
}
