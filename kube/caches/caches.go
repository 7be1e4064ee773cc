// Package caches reads what a decision needs of the cluster from the caches of a manager, and keeps
// nothing else there.
//
// It owns no cache and decides nothing (package grant does). It needs no privilege and no particular
// kernel.
package caches

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tsugiki/tsugiki/kube/grant"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// Namespace is the kind of object as which a cache has namespaces: their metadata.
func Namespace() *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return o
}

// Labels returns the labels of a namespace.
func Labels(ctx context.Context, c client.Reader, namespace string) (map[string]string, error) {
	o := Namespace()
	if err := c.Get(ctx, types.NamespacedName{Name: namespace}, o); err != nil {
		return nil, fmt.Errorf("labels of namespace %s: %w", namespace, err)
	}
	return o.Labels, nil
}

// Endpoints returns a function that finds endpoints by their names, as grant.Question has it. Nobody may change
// them: they are those of the cache. It leaves an error that says more than that there is none in failed.
func Endpoints(ctx context.Context, c client.Reader, failed *error) func(name string) *v1alpha1.GraftEndpoint {
	return func(name string) *v1alpha1.GraftEndpoint {
		var e v1alpha1.GraftEndpoint
		err := c.Get(ctx, types.NamespacedName{Name: name}, &e, client.UnsafeDisableDeepCopy)
		if err == nil {
			return &e
		}
		if !apierrors.IsNotFound(err) {
			*failed = err
		}
		return nil
	}
}

// Asked are functions that Decide calls.
type Asked struct {
	Note    func(endpoint string)        // before it reads an endpoint
	MayCome func(endpoint string) bool   // as grant.Question has it
	Peers   func() (*grant.Peers, error) // as grant.Question has it
}

// Decide answers the question what a pod is given by ports on a node. It reads objects in their cache, and copies none.
func Decide(ctx context.Context, c client.Reader, pod *corev1.Pod, node grant.Node, ports grant.Ports, asked Asked) (grant.Decision, error) {
	q := grant.Question{Pod: pod, Node: node, Ports: ports, MayCome: asked.MayCome}
	var err error
	if q.Namespace, err = Labels(ctx, c, pod.Namespace); err != nil {
		return grant.Decision{}, err
	}
	var policies v1alpha1.GraftPolicyList
	if err := c.List(ctx, &policies, client.InNamespace(pod.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return grant.Decision{}, fmt.Errorf("policies of namespace %s: %w", pod.Namespace, err)
	}
	for i := range policies.Items {
		if policies.Items[i].DeletionTimestamp == nil {
			q.Policies = append(q.Policies, &policies.Items[i])
		}
	}
	slices.SortFunc(q.Policies, func(a, b *v1alpha1.GraftPolicy) int { return strings.Compare(a.Name, b.Name) })
	var failed error
	find := Endpoints(ctx, c, &failed)
	q.Endpoint = func(name string) *v1alpha1.GraftEndpoint {
		asked.Note(name)
		return find(name)
	}
	q.Peers = func() *grant.Peers {
		p, err := asked.Peers()
		if err != nil {
			failed, p = err, grant.NewPeers(nil)
		}
		return p
	}
	d := grant.Decide(&q)
	return d, failed
}
