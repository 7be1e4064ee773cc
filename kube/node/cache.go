package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

const (
	labelManagedBy = "tsugiki.dev"
	labelNode      = "kube.tsugiki.dev/node" // of a slice: nodeLabel
	labelPod       = "kube.tsugiki.dev/pod"  // of a slice: the pod's UID
	annotationPod  = "kube.tsugiki.dev/pod"  // of a slice: the pod's name
)

// CacheOptions say what a node watches, and what it keeps of it: its own pods, its own slices, all
// policies and endpoints, and the metadata of namespaces.
func CacheOptions(node string) cache.Options {
	return cache.Options{
		ReaderFailOnMissingInformer: true,
		DefaultTransform:            strip,
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}: {Field: fields.OneTermEqualSelector("spec.nodeName", node), Transform: stripPod},
			&discoveryv1.EndpointSlice{}: {Label: labels.SelectorFromSet(labels.Set{
				discoveryv1.LabelManagedBy: labelManagedBy, labelNode: nodeLabel(node),
			})},
		},
	}
}

// watchAll begins all watches before the caches start, so that they are complete when Start is called.
func watchAll(c cache.Cache) error {
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	for _, o := range []client.Object{&corev1.Pod{}, &v1alpha1.GraftPolicy{}, &v1alpha1.GraftEndpoint{}, namespace, &discoveryv1.EndpointSlice{}} {
		if _, err := c.GetInformer(context.Background(), o, cache.BlockUntilSynced(false)); err != nil {
			return err
		}
	}
	return nil
}

// nodeLabel is a node's name as the value of a label, which has at most 63 bytes.
func nodeLabel(node string) string {
	if len(node) <= 63 {
		return node
	}
	sum := sha256.Sum256([]byte(node))
	return "sha256-" + hex.EncodeToString(sum[:16])
}

// strip takes away what no decision needs.
func strip(object any) (any, error) {
	switch o := object.(type) {
	case *v1alpha1.GraftPolicy:
		o.Status = v1alpha1.GraftPolicyStatus{}
		stripMeta(o)
	case *v1alpha1.GraftEndpoint:
		o.Status = v1alpha1.GraftEndpointStatus{}
		stripMeta(o)
	case *metav1.PartialObjectMetadata:
		stripMeta(o)
	}
	return object, nil
}

// stripMeta keeps names, labels, generation and times.
func stripMeta(o client.Object) {
	o.SetManagedFields(nil)
	o.SetAnnotations(nil)
	o.SetOwnerReferences(nil)
}

// stripPod keeps of a pod what decisions and its status need.
func stripPod(object any) (any, error) {
	p, is := object.(*corev1.Pod)
	if !is {
		return object, nil
	}
	ours := p.Annotations[AnnotationPorts]
	stripMeta(p)
	if ours != "" {
		p.Annotations = map[string]string{AnnotationPorts: ours}
	}
	s := p.Spec
	p.Spec = corev1.PodSpec{
		NodeName: s.NodeName, RuntimeClassName: s.RuntimeClassName, HostNetwork: s.HostNetwork, HostUsers: s.HostUsers,
		Containers: stripContainers(s.Containers), InitContainers: stripContainers(s.InitContainers),
	}
	for _, c := range s.EphemeralContainers {
		p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, corev1.EphemeralContainer{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: c.Name, SecurityContext: c.SecurityContext},
		})
	}
	p.Status = corev1.PodStatus{
		Phase: p.Status.Phase, PodIPs: p.Status.PodIPs,
		Conditions: slices.DeleteFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type != corev1.PodReady && c.Type != ConditionGrafted
		}),
	}
	return p, nil
}

func stripContainers(list []corev1.Container) (stripped []corev1.Container) {
	for _, c := range list {
		stripped = append(stripped, corev1.Container{
			Name: c.Name, Ports: c.Ports, SecurityContext: c.SecurityContext,
			LivenessProbe: stripProbe(c.LivenessProbe), ReadinessProbe: stripProbe(c.ReadinessProbe), StartupProbe: stripProbe(c.StartupProbe),
		})
	}
	return stripped
}

func stripProbe(p *corev1.Probe) *corev1.Probe {
	if p == nil {
		return nil
	}
	q := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: p.TCPSocket, GRPC: p.GRPC}}
	if p.HTTPGet != nil {
		q.HTTPGet = &corev1.HTTPGetAction{Host: p.HTTPGet.Host, Port: p.HTTPGet.Port}
	}
	return q
}

// concerns tells whether an object is a pod that is grafted.
func (n *Node) concerns(o client.Object) bool {
	p, is := o.(*corev1.Pod)
	return is && p.Spec.RuntimeClassName != nil && slices.Contains(n.Classes, *p.Spec.RuntimeClassName)
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
		if slices.ContainsFunc(pods, func(k *known) bool { return k.endpoints[o.GetName()] }) {
			requests = append(requests, reconcile.Request{NamespacedName: key})
		}
	}
	return requests
}

func podOfSlice(_ context.Context, o client.Object) []reconcile.Request {
	name := o.GetAnnotations()[annotationPod]
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}}}
}
