package node

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tsugiki/tsugiki/kube/grant"
	"github.com/tsugiki/tsugiki/kube/kubetest"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

func testPermissions(t *testing.T, w *world) {
	w.stop() // it would write the conditions of the test's pods
	node := kubetest.Client(t, w.config)
	theirs := w.pod("theirs", "n2", webLabels)
	ours := w.pod("ours", kubetest.NodeName, webLabels)
	change := func(p *corev1.Pod, change func(*corev1.Pod)) error {
		var now corev1.Pod
		if err := node.Get(t.Context(), client.ObjectKeyFromObject(p), &now); err != nil {
			t.Fatal(err) // it may read all pods
		}
		change(&now)
		return node.Status().Update(t.Context(), &now)
	}
	condition := func(name corev1.PodConditionType) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: name, Status: corev1.ConditionTrue})
		}
	}
	annotation := func(name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { metav1.SetMetaDataAnnotation(&p.ObjectMeta, name, "[]") }
	}
	statuses := func(name string) []corev1.ContainerStatus {
		return []corev1.ContainerStatus{{Name: name, Image: "nginx"}}
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "s", Namespace: "shop", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.9.9.9"}}},
	}
	if err := w.admin.Create(t.Context(), slice); err != nil {
		t.Fatal(err)
	}
	fresh := slice.DeepCopy()
	fresh.Name, fresh.ResourceVersion, fresh.UID = "t", "", ""
	for what, err := range map[string]error{
		"the status of another node's pod": change(theirs, annotation(AnnotationPorts)),
		"the ports of another node's pod":  change(theirs, condition(grant.ConditionPorts)),
		"another annotation":               change(ours, annotation("a")),
		"that a pod is ready":              change(ours, condition(corev1.PodReady)),
		"the addresses of a pod":           change(ours, func(p *corev1.Pod) { p.Status.PodIP, p.Status.PodIPs = "10.9.9.9", []corev1.PodIP{{IP: "10.9.9.9"}} }),
		"the addresses of the node":        change(ours, func(p *corev1.Pod) { p.Status.HostIP, p.Status.HostIPs = "10.9.9.9", []corev1.HostIP{{IP: "10.9.9.9"}} }),
		"reason and message":               change(ours, func(p *corev1.Pod) { p.Status.Reason, p.Status.Message = "Evicted", "by nobody" }),
		"the start":                        change(ours, func(p *corev1.Pod) { p.Status.StartTime = &metav1.Time{Time: time.Unix(1, 0)} }),
		"the nominated node":               change(ours, func(p *corev1.Pod) { p.Status.NominatedNodeName = "n2" }),
		"containers":                       change(ours, func(p *corev1.Pod) { p.Status.ContainerStatuses = statuses("nginx") }),
		"init containers":                  change(ours, func(p *corev1.Pod) { p.Status.InitContainerStatuses = statuses("setup") }),
		"ephemeral containers":             change(ours, func(p *corev1.Pod) { p.Status.EphemeralContainerStatuses = statuses("debug") }),
		"resource claims":                  change(ours, func(p *corev1.Pod) { p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu"}} }),
		"the generation that was seen":     change(ours, func(p *corev1.Pod) { p.Status.ObservedGeneration = 77 }),
		"an end":                           change(ours, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }),
		"what was in the status":           change(ours, func(p *corev1.Pod) { p.Status.HostIP, p.Status.HostIPs = "", nil }),
		"finalizers":                       change(ours, func(p *corev1.Pod) { p.Finalizers = []string{"example.org/stay"} }),
		"labels of a pod":                  change(ours, func(p *corev1.Pod) { p.Labels["app"] = "db" }),
		"a patch":                          node.Status().Patch(t.Context(), ours.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"annotations": {"kube.tsugiki.dev/ports": "[]"}}}`))),
		"a slice":                          node.Create(t.Context(), fresh),
		"to change one":                    node.Update(t.Context(), slice.DeepCopy()),
		"to delete one":                    node.Delete(t.Context(), slice.DeepCopy()),
		"an endpoint":                      node.Create(t.Context(), &v1alpha1.GraftEndpoint{ObjectMeta: metav1.ObjectMeta{Name: "mine"}, Spec: v1alpha1.GraftEndpointSpec{Type: v1alpha1.IPv4}}),
		"a pod":                            node.Delete(t.Context(), theirs.DeepCopy()),
		"secrets":                          node.List(t.Context(), &corev1.SecretList{}),
		"slices, though it may write none": node.List(t.Context(), &discoveryv1.EndpointSliceList{}),
	} {
		if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v, want that it is forbidden", what, err)
		}
	}
	for _, own := range []func(*corev1.Pod){annotation(AnnotationPorts), condition(grant.ConditionPorts)} {
		if err := change(ours, own); err != nil {
			t.Errorf("what tsugiki-kube writes: %v", err)
		}
	}
	// The API server itself leaves these out of a status.
	if err := change(ours, func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "theirs", UID: theirs.UID}}
	}); err != nil {
		t.Errorf("owners: %v", err)
	}
	var now corev1.Pod
	if err := w.admin.Get(t.Context(), client.ObjectKeyFromObject(ours), &now); err != nil || len(now.OwnerReferences) > 0 {
		t.Errorf("the pod's owners are %v, %v", now.OwnerReferences, err)
	}
	w.delete(slice)
	if err := w.admin.Delete(t.Context(), ours, client.GracePeriodSeconds(60)); err != nil {
		t.Fatal(err)
	}
	if err := change(ours, condition(ConditionGrafted)); err != nil {
		t.Errorf("of a pod that is about to end: %v", err)
	}
	w.delete(ours)
	w.delete(theirs)
}
