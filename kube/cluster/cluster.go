// Package cluster checks the resources of the cluster and writes their status: whether an endpoint
// or a policy can be put in force, and whether a policy names an endpoint. It writes the EndpointSlices
// of pods (slices.go), and compares the cluster's definitions of the resources with its own (fields.go).
//
// It gives nothing to a pod: nodes do, and they check for themselves. One process for the cluster is
// enough, and leader election keeps a second one waiting. It needs the permissions of
// deploy/manifests/rbac.yaml.
package cluster

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/tsugiki/tsugiki/kube/caches"
	"github.com/tsugiki/tsugiki/kube/grant"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// indexEndpoint is the index of policies by the endpoints that they name.
const indexEndpoint = "spec.endpoints"

// CacheOptions say what the cluster's process watches, and what it keeps of it: the resources, the
// metadata of namespaces, of all pods those with ports of their nodes, and the slices that it has
// written itself.
func CacheOptions() cache.Options {
	return cache.Options{
		ReaderFailOnMissingInformer: true,
		DefaultTransform:            caches.Strip,
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}:                {Transform: stripPod},
			&discoveryv1.EndpointSlice{}: {Label: labels.SelectorFromSet(labels.Set{discoveryv1.LabelManagedBy: managedBy})},
		},
	}
}

// Add adds the controllers to a manager whose caches are those of CacheOptions.
func Add(m ctrl.Manager) error {
	err := m.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.GraftPolicy{}, indexEndpoint, func(o client.Object) []string {
		return endpointsOf(o.(*v1alpha1.GraftPolicy))
	})
	if err != nil {
		return err
	}
	c := &cluster{m.GetClient(), grant.NewPeers(nil)}
	if err := c.addSlices(m); err != nil {
		return err
	}
	err = ctrl.NewControllerManagedBy(m).Named("graftendpoint").
		For(&v1alpha1.GraftEndpoint{}). // with its status, which is compared with the cache's: that may be older
		Watches(&v1alpha1.GraftPolicy{}, handler.EnqueueRequestsFromMapFunc(endpointRequests), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(caches.Controller(1)).
		Complete(reconcile.Func(c.endpoint))
	if err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(m).Named("graftpolicy").
		For(&v1alpha1.GraftPolicy{}). // as above
		Watches(&v1alpha1.GraftEndpoint{}, handler.EnqueueRequestsFromMapFunc(c.policiesOfEndpoint), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesMetadata(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(c.policiesOfNamespace), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		WithOptions(caches.Controller(1)).
		Complete(reconcile.Func(c.policy))
}

type cluster struct {
	client client.Client
	peers  *grant.Peers // none
}

// endpointsOf returns the names of a policy's endpoints, sorted.
func endpointsOf(p *v1alpha1.GraftPolicy) []string {
	var names []string
	for _, r := range p.Spec.Ingress {
		names = append(names, r.Endpoint)
	}
	for _, r := range p.Spec.Egress {
		names = append(names, r.Endpoint)
	}
	if p.Spec.Translate != nil {
		names = append(names, p.Spec.Translate.Endpoint)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// endpointRequests are called for the old and the new state of a policy that changes.
func endpointRequests(_ context.Context, o client.Object) (list []reconcile.Request) {
	for _, name := range endpointsOf(o.(*v1alpha1.GraftPolicy)) {
		list = append(list, reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
	}
	return list
}

func (c *cluster) policiesOfEndpoint(ctx context.Context, o client.Object) []reconcile.Request {
	return c.policies(ctx, client.MatchingFields{indexEndpoint: o.GetName()})
}

func (c *cluster) policiesOfNamespace(ctx context.Context, o client.Object) []reconcile.Request {
	return c.policies(ctx, client.InNamespace(o.GetName()))
}

func (c *cluster) policies(ctx context.Context, which client.ListOption) (requests []reconcile.Request) {
	var list v1alpha1.GraftPolicyList
	if err := c.client.List(ctx, &list, which, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "list policies of the cache")
		return nil
	}
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests
}

// endpoint writes the status of an endpoint.
func (c *cluster) endpoint(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	var e v1alpha1.GraftEndpoint
	if err := c.client.Get(ctx, r.NamespacedName, &e); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	var list v1alpha1.GraftPolicyList
	if err := c.client.List(ctx, &list, client.MatchingFields{indexEndpoint: e.Name}, client.Limit(1), client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, err
	}
	before := e.DeepCopy()
	e.Status.Used = len(list.Items) > 0
	accept(&e.Status.Conditions, e.Generation, grant.CheckEndpoint(&e))
	if equality.Semantic.DeepEqual(before.Status, e.Status) {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, client.IgnoreNotFound(c.client.Status().Patch(ctx, &e, client.MergeFrom(before)))
}

// policy writes the status of a policy.
func (c *cluster) policy(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	var p v1alpha1.GraftPolicy
	if err := c.client.Get(ctx, r.NamespacedName, &p); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	of, err := caches.Labels(ctx, c.client, p.Namespace)
	if err != nil {
		return reconcile.Result{}, err
	}
	var failed error
	wrong := grant.CheckPolicy(&p, of, caches.Endpoints(ctx, c.client, &failed))
	if failed != nil {
		return reconcile.Result{}, failed
	}
	before := p.DeepCopy()
	p.Status.Endpoints = strings.Join(endpointsOf(&p), ",")
	p.Status.Ingress, p.Status.Egress = columns(&p.Spec)
	accept(&p.Status.Conditions, p.Generation, wrong)
	if equality.Semantic.DeepEqual(before.Status, p.Status) {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, client.IgnoreNotFound(c.client.Status().Patch(ctx, &p, client.MergeFrom(before)))
}

// columnPrefixes is how many prefixes a column has room for.
const columnPrefixes = 3

// columns returns what kubectl shows of a policy's rules.
func columns(s *v1alpha1.GraftPolicySpec) (ingress, egress string) {
	var ports, prefixes []string
	for _, r := range s.Ingress {
		port := strconv.Itoa(int(r.Port))
		if r.Protocol == v1alpha1.UDP {
			port += "/UDP"
		}
		ports = append(ports, port)
	}
	for _, r := range s.Egress {
		for _, to := range r.To {
			if !slices.Contains(prefixes, to) {
				prefixes = append(prefixes, to)
			}
		}
	}
	if more := len(prefixes) - columnPrefixes; more > 0 {
		prefixes = append(prefixes[:columnPrefixes], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(ports, ","), strings.Join(prefixes, ",")
}

// accept sets the condition of a resource.
func accept(conditions *[]metav1.Condition, generation int64, wrong error) {
	c := metav1.Condition{
		Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: "Accepted", Message: "it can be put in force", ObservedGeneration: generation,
	}
	if wrong != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, "Refused", wrong.Error()
	}
	meta.SetStatusCondition(conditions, c)
}
