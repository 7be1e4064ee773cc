package caches

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/kube/grant"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// Strip takes away what no decision needs of policies, endpoints and namespaces, but their status, and the rules of
// policies that are too large.
func Strip(object any) (any, error) {
	switch o := object.(type) {
	case *v1alpha1.GraftPolicy:
		stripMeta(o)
		stripLabels(o)
		return o, grant.Shorten(o)
	case *v1alpha1.GraftEndpoint:
		stripMeta(o)
		stripLabels(o)
	case *metav1.PartialObjectMetadata:
		stripMeta(o)
	}
	return object, nil
}

// stripMeta keeps names, labels, finalizers, generation and times.
func stripMeta(o client.Object) {
	o.SetManagedFields(nil)
	o.SetAnnotations(nil)
	o.SetOwnerReferences(nil)
}

// stripLabels takes away labels and finalizers, which have no limit but that of the whole object. Such an object may be
// patched and never updated: an update would take them away in the API server.
func stripLabels(o client.Object) {
	o.SetLabels(nil)
	o.SetFinalizers(nil)
}

// StripPod keeps of a pod what decisions need, its addresses and those of its node, and some conditions. It
// takes away all annotations but that by which a pod asks to be grafted.
func StripPod(p *corev1.Pod, conditions ...corev1.PodConditionType) {
	asks, has := p.Annotations[api.AnnotationGraft]
	stripMeta(p)
	if has {
		p.Annotations = map[string]string{api.AnnotationGraft: asks}
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
		Phase: p.Status.Phase, HostIP: p.Status.HostIP, HostIPs: p.Status.HostIPs, PodIPs: p.Status.PodIPs,
		Conditions: slices.DeleteFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return !slices.Contains(conditions, c.Type) }),
	}
}

func stripContainers(list []corev1.Container) (stripped []corev1.Container) {
	for _, c := range list {
		stripped = append(stripped, corev1.Container{
			Name: c.Name, RestartPolicy: c.RestartPolicy, Ports: c.Ports, SecurityContext: c.SecurityContext,
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
