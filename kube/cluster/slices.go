package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/tsugiki/tsugiki/kube/caches"
	"github.com/tsugiki/tsugiki/kube/grant"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// # EndpointSlices
//
// A node says in the condition grant.ConditionPorts of a pod which ports of the node the pod has. It
// says nothing of Services and nothing that is believed of addresses: the decision is made here again,
// by the policies, the endpoints and the addresses of the pod's node, and takes from the condition the
// numbers of ports alone, if the endpoints have them. So a node that lies reaches no Service but those
// for which policies select its own pods.
//
// All endpoints of a slice have the same ports, and pods of a node have different ones. So there is
// a slice for each pod, Service and address. The pod owns it.

const (
	managedBy = "tsugiki.dev"
	labelPod  = "kube.tsugiki.dev/pod" // of a slice: the pod's UID
	// indexPod is the index of slices by the names of the pods that own them.
	indexPod = "owner"
	// slicesAtOnce is the number of pods whose slices are written at once.
	slicesAtOnce = 4
)

// addSlices adds the controller that writes the EndpointSlices of pods.
func (c *cluster) addSlices(m ctrl.Manager) error {
	err := m.GetFieldIndexer().IndexField(context.Background(), &discoveryv1.EndpointSlice{}, indexPod, func(o client.Object) (pods []string) {
		for _, owner := range o.GetOwnerReferences() {
			pods = append(pods, owner.Name)
		}
		return pods
	})
	if err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(m).Named("slices").
		For(&corev1.Pod{}, builder.WithPredicates(served)).
		Watches(&discoveryv1.EndpointSlice{}, handler.EnqueueRequestForOwner(m.GetScheme(), m.GetRESTMapper(), &corev1.Pod{})).
		Watches(&v1alpha1.GraftPolicy{}, handler.EnqueueRequestsFromMapFunc(c.podsOfPolicy), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.GraftEndpoint{}, handler.EnqueueRequestsFromMapFunc(c.podsOfEndpoint), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesMetadata(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(c.podsOfNamespace), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		WithOptions(caches.Controller(slicesAtOnce)).
		Complete(reconcile.Func(c.slices))
}

// serves tells whether an object is a pod that has, or had, ports of its node.
func serves(o client.Object) bool {
	p, is := o.(*corev1.Pod)
	return is && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == grant.ConditionPorts })
}

// served selects changes of pods that serve, or did, and the ends of all: slices of an earlier
// tsugiki-kube are of pods that do not say that they serve.
var served = func() predicate.Funcs {
	p := predicate.NewPredicateFuncs(serves)
	p.UpdateFunc = func(e event.UpdateEvent) bool { return serves(e.ObjectOld) || serves(e.ObjectNew) }
	p.DeleteFunc = func(event.DeleteEvent) bool { return true }
	return p
}()

// stripPod is the transformation of pods in the cache: of pods that serve nothing, names are left.
func stripPod(object any) (any, error) {
	p, is := object.(*corev1.Pod)
	if is && serves(p) {
		caches.StripPod(p, corev1.PodReady, grant.ConditionPorts)
	} else if is {
		p.ObjectMeta = metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, UID: p.UID, ResourceVersion: p.ResourceVersion}
		p.Spec, p.Status = corev1.PodSpec{}, corev1.PodStatus{}
	}
	return object, nil
}

func (c *cluster) podsOfPolicy(ctx context.Context, o client.Object) []reconcile.Request {
	return c.podsIn(ctx, o.GetNamespace())
}

func (c *cluster) podsOfNamespace(ctx context.Context, o client.Object) []reconcile.Request {
	return c.podsIn(ctx, o.GetName())
}

// podsOfEndpoint returns the pods in namespaces with a policy that names an endpoint.
func (c *cluster) podsOfEndpoint(ctx context.Context, o client.Object) (requests []reconcile.Request) {
	namespaces := map[string]bool{}
	for _, p := range c.policiesOfEndpoint(ctx, o) {
		namespaces[p.Namespace] = true
	}
	for n := range namespaces {
		requests = append(requests, c.podsIn(ctx, n)...)
	}
	return requests
}

// podsIn returns the pods of a namespace that serve something.
func (c *cluster) podsIn(ctx context.Context, namespace string) (requests []reconcile.Request) {
	var list corev1.PodList
	if err := c.client.List(ctx, &list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "list pods of the cache")
		return nil
	}
	for i := range list.Items {
		if serves(&list.Items[i]) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
}

// slices has the slices of all pods of a name be those of the pod that is there. The slices of a pod
// that has no condition stay: its node has an earlier tsugiki-kube, which wrote slices itself.
func (c *cluster) slices(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	var pod corev1.Pod
	if err := c.client.Get(ctx, r.NamespacedName, &pod); client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, err
	}
	want, err := c.slicesOf(ctx, &pod)
	if err != nil {
		return reconcile.Result{}, err
	}
	var has discoveryv1.EndpointSliceList
	if err := c.client.List(ctx, &has, client.InNamespace(r.Namespace), client.MatchingFields{indexPod: r.Name}); err != nil {
		return reconcile.Result{}, err
	}
	var errs []error // of one slice each: the others are written all the same
	for i := range has.Items {
		old := &has.Items[i]
		next := want[old.Name]
		var err error
		delete(want, old.Name)
		switch {
		case old.Labels[labelPod] == string(pod.UID) && !serves(&pod):
		case next == nil:
			err = c.client.Delete(ctx, old, client.Preconditions{UID: &old.UID})
		case !sameSlice(old, next):
			next.UID, next.ResourceVersion = old.UID, old.ResourceVersion
			err = c.client.Update(ctx, next)
		}
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("slice %s: %w", old.Name, err))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if err := c.client.Create(ctx, want[name]); err != nil && !apierrors.IsAlreadyExists(err) { // the cache may be older
			errs = append(errs, fmt.Errorf("slice %s: %w", name, err))
		}
	}
	return reconcile.Result{}, errors.Join(errs...)
}

func sameSlice(a, b *discoveryv1.EndpointSlice) bool {
	return apiequality.Semantic.DeepEqual(a.Endpoints, b.Endpoints) && apiequality.Semantic.DeepEqual(a.Ports, b.Ports) &&
		maps.Equal(a.Labels, b.Labels) && apiequality.Semantic.DeepEqual(a.OwnerReferences, b.OwnerReferences)
}

// slicesOf returns the slices that a pod has to have, by their names. A pod that has ended, that is
// refused, or that does not ask to be grafted (any more), has none.
func (c *cluster) slicesOf(ctx context.Context, pod *corev1.Pod) (map[string]*discoveryv1.EndpointSlice, error) {
	all := map[string]*discoveryv1.EndpointSlice{}
	claims, err := grant.ClaimsOf(pod)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "the pod has no EndpointSlices") // until its node writes another condition
	}
	asks := pod.Spec.RuntimeClassName != nil || grant.Asks(pod)
	if len(claims) == 0 || !asks || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return all, nil
	}
	d, err := caches.Decide(ctx, c.client, pod, nodeOf(pod), claims, caches.Asked{
		Note: func(string) {},
		// A missing endpoint takes the slices of its own rules. Whether it refuses the pod is its node's to say.
		MayCome: func(string) bool { return true },
		Peers:   c.noPeers,
	})
	if err != nil {
		return nil, err
	}
	for i := range d.Served {
		s := &d.Served[i]
		if !s.Host.Addr().IsValid() {
			continue
		}
		for _, of := range s.Services {
			name := sliceName(of.Name, string(pod.UID), s.Host.Addr())
			if all[name] == nil {
				all[name] = slice(name, pod, of.Name, s.Host.Addr())
			}
			port, protocol := int32(s.Host.Port()), corev1.Protocol(s.Protocol)
			all[name].Ports = append(all[name].Ports, discoveryv1.EndpointPort{Name: &of.Port, Port: &port, Protocol: &protocol})
		}
	}
	return all, nil
}

// noPeers says of which pods a rule takes connections: that is the node's, and changes no port.
func (c *cluster) noPeers() (*grant.Peers, error) { return c.peers, nil }

// nodeOf returns the addresses of a pod's node that the kubelet has written: the first one of each
// family, as tsugiki-kube on the node has them.
func nodeOf(p *corev1.Pod) grant.Node {
	node := grant.Node{Name: p.Spec.NodeName}
	for _, ip := range p.Status.HostIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil && a.Zone() == "" {
			node.Add(a)
		}
	}
	return node
}

func slice(name string, pod *corev1.Pod, service string, at netip.Addr) *discoveryv1.EndpointSlice {
	ready := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
	terminating, available, node := pod.DeletionTimestamp != nil, ready && pod.DeletionTimestamp == nil, pod.Spec.NodeName
	family := discoveryv1.AddressTypeIPv4
	if at.Is6() {
		family = discoveryv1.AddressTypeIPv6
	}
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: pod.Namespace,
			Labels:          map[string]string{discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: managedBy, labelPod: string(pod.UID)},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
		},
		AddressType: family,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses:  []string{at.String()},
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
