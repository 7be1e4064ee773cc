package node

import (
	"encoding/json"
	"errors"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/kube/grant"
	"github.com/tsugiki/tsugiki/kube/kubetest"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// TestNode is one test, because API servers take some seconds to start.
func TestNode(t *testing.T) {
	w := newWorld(t)
	w.start(time.Millisecond)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *world)
	}{
		{"pods are given what the resources say", testGranted},
		{"refused pods", testRefused},
		{"resources that go and come back", testWithdrawn},
		{"restarts", testRestarts},
		{"a pod of the same name", testSameName},
		{"pods that a rule selects", testPeers},
		{"what a node may not do", testPermissions},
	} {
		t.Run(test.name, func(t *testing.T) {
			outer := w.t
			w.t = t
			defer func() { w.t = outer }()
			test.run(t, w)
		})
	}
}

func testGranted(t *testing.T, w *world) {
	a, b := w.pod("a", kubetest.NodeName, webLabels), w.pod("b", kubetest.NodeName, webLabels)
	w.pod("elsewhere", "n2", webLabels)
	w.granted(a, given)
	w.granted(b, given)
	now := w.condition(a, corev1.ConditionTrue, ReasonGranted, "")
	var list []Port
	if err := json.Unmarshal([]byte(now.Annotations[AnnotationPorts]), &list); err != nil || len(list) != 1 || list[0].Port != 80 {
		t.Errorf("annotation %s: %q, %v", AnnotationPorts, now.Annotations[AnnotationPorts], err)
	}
	hosts := w.available("web", 2, 0)
	if hosts[0] == hosts[1] || hosts[0].Addr() != testkit.HostAddr4 || hosts[0].Port() < 31000 || hosts[0].Port() > 31999 {
		t.Errorf("the Service's endpoints are %v, want two ports of the node", hosts)
	}
	w.ready(a, corev1.ConditionTrue)
	w.available("web", 2, 1)
	w.ready(a, corev1.ConditionFalse)
	w.available("web", 2, 0)
	for _, s := range w.slices("web") { // somebody deletes them
		w.delete(&s)
	}
	w.available("web", 2, 0)
	w.delete(b)
	w.gone(b)
	w.available("web", 1, 0)
	w.delete(a)
	w.gone(a)
	w.available("web", 0, 0)
}

func testRefused(t *testing.T, w *world) {
	p := w.pod("nobody", kubetest.NodeName, map[string]string{"app": "nobody"})
	container := api.Pod{Namespace: "shop", Name: p.Name, UID: string(p.UID), Container: "nginx"}
	w.agent.Register(container) // it waits; before that, there is no refusal
	w.granted(p, refused("no GraftPolicy of namespace shop selects the pod"))
	w.agent.Register(container)
	w.event(p, ReasonRefused, "no GraftPolicy of namespace shop selects the pod")
	w.condition(p, corev1.ConditionFalse, ReasonRefused, "no GraftPolicy")
	kubetest.Create(t, w.admin, `{apiVersion: tsugiki.dev/v1alpha1, kind: GraftPolicy, metadata: {name: nobody, namespace: shop},
		spec: {podSelector: {matchLabels: {app: nobody}}, ingress: [{endpoint: missing, port: 80}], egress: [{endpoint: out, to: [10.0.0.0/8]}]}}`)
	w.granted(p, refused("there is no GraftEndpoint missing"))
	kubetest.Create(t, w.admin, `{apiVersion: tsugiki.dev/v1alpha1, kind: GraftEndpoint, metadata: {name: missing},
		spec: {type: IPv4, ports: "8080", allowedPods: [{namespaceSelector: {matchLabels: {team: bank}}}]}}`)
	w.granted(p, refused("GraftEndpoint missing is not for this pod"))
	e := &v1alpha1.GraftEndpoint{ObjectMeta: metav1.ObjectMeta{Name: "missing"}}
	allow := `{"spec": {"allowedPods": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "nobody"}}}]}}`
	if err := w.admin.Patch(t.Context(), e, client.RawPatch(types.MergePatchType, []byte(allow))); err != nil {
		t.Fatal(err)
	}
	w.granted(p, given)
	now := w.condition(p, corev1.ConditionTrue, ReasonGranted, "")
	now.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
		Name: "debug", Image: "debug", SecurityContext: &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN"}}},
	}}}
	if err := w.admin.SubResource("ephemeralcontainers").Update(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	w.granted(p, refused("container debug has CAP_NET_ADMIN"))
	w.delete(p)
	w.gone(p)
}

func testWithdrawn(t *testing.T, w *world) {
	p := w.pod("old", kubetest.NodeName, webLabels)
	before := w.granted(p, given)
	w.register(p)
	var e v1alpha1.GraftEndpoint
	if err := w.admin.Get(t.Context(), types.NamespacedName{Name: "out"}, &e); err != nil {
		t.Fatal(err)
	}
	w.delete(&e)
	w.granted(p, refused("there is no GraftEndpoint out"))
	w.event(p, ReasonWithdrawn, "10.1.0.0/16=")
	e.ResourceVersion, e.UID = "", ""
	if err := w.admin.Create(t.Context(), &e); err != nil {
		t.Fatal(err)
	}
	if after := w.granted(p, given); after.Containers["nginx"].Ingress[0] != before.Containers["nginx"].Ingress[0] ||
		after.Containers["nginx"].Endpoints[0] != before.Containers["nginx"].Endpoints[0] {
		t.Errorf("the grant after the endpoint came back: %+v, before it was %+v", after, before)
	}
	label := func(team string) {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
		if err := w.admin.Patch(t.Context(), ns, client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"labels": {"team": "`+team+`"}}}`))); err != nil {
			t.Fatal(err)
		}
	}
	label("bank")
	w.granted(p, refused("is not for this pod"))
	w.available("web", 0, 0)
	label("shop")
	w.granted(p, given)
	w.available("web", 1, 0)
	patch := `{"spec": {"egress": [{"endpoint": "out", "to": ["10.2.0.0/16"]}]}}`
	policy := &v1alpha1.GraftPolicy{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop"}}
	if err := w.admin.Patch(t.Context(), policy, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		t.Fatal(err)
	}
	w.event(p, ReasonRestart, "10.2.0.0/16=")
	w.condition(p, corev1.ConditionFalse, ReasonRestart, "10.2.0.0/16=")
	w.register(p) // a new container
	w.condition(p, corev1.ConditionTrue, ReasonGranted, "")
	w.delete(p)
	w.gone(p)
}

func testRestarts(t *testing.T, w *world) {
	p, q := w.pod("p", kubetest.NodeName, webLabels), w.pod("q", kubetest.NodeName, webLabels)
	before := w.granted(p, given)
	other := w.granted(q, given)
	w.register(p)
	w.register(q)
	w.agent.Restart()
	w.granted(p, given)
	w.granted(q, given)
	w.stop()
	w.delete(q)
	w.start(time.Millisecond)
	w.gone(q)
	r := w.pod("r", kubetest.NodeName, webLabels)
	if g := w.granted(r, given); g.Containers["nginx"].Endpoints[0] == before.Containers["nginx"].Endpoints[0] {
		t.Errorf("a new pod has the port of pod p: %+v", g)
	}
	if g := w.granted(p, given); g.Containers["nginx"].Endpoints[0] != before.Containers["nginx"].Endpoints[0] {
		t.Errorf("after a restart, pod p has %+v, before it had %+v; pod q had %+v", g, before, other)
	}
	w.delete(p)
	w.delete(r)
	w.gone(p)
	w.gone(r)
}

// A pod of a StatefulSet has the name of the one before, and nothing of it.
func testSameName(t *testing.T, w *world) {
	old := w.pod("db-0", kubetest.NodeName, webLabels)
	w.granted(old, given)
	w.delete(old)
	young := w.pod("db-0", kubetest.NodeName, webLabels)
	w.granted(young, given)
	w.gone(old)
	w.delete(young)
	w.gone(young)
	// While tsugiki-kube is away, the agent has a grant of each.
	w.stop()
	var all []*corev1.Pod
	for range 3 {
		if len(all) > 0 {
			w.delete(all[len(all)-1])
		}
		p := w.pod("db-0", kubetest.NodeName, webLabels)
		if _, err := w.agent.PutGrant(string(p.UID), api.Grant{Namespace: p.Namespace, Name: p.Name}); err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	w.start(time.Millisecond)
	w.granted(all[2], given)
	w.gone(all[0])
	w.gone(all[1])
	w.delete(all[2])
	w.gone(all[2])
}

func testPermissions(t *testing.T, w *world) {
	w.stop() // it would delete the slices of the test
	node := kubetest.Client(t, w.config)
	theirs := w.pod("theirs", "n2", webLabels)
	ours := w.pod("ours", kubetest.NodeName, webLabels)
	patch := func(p *corev1.Pod, text string) error {
		return node.Status().Patch(t.Context(), p.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, []byte(text)))
	}
	slice := func(change func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
		n := &Node{Options: Options{Node: grant.Node{Name: kubetest.NodeName}}}
		s := n.slice("x", ours, &grant.Served{Host: netip.AddrPortFrom(testkit.HostAddr4, 80), Service: &v1alpha1.ServicePort{Name: "x", Port: "http"}}, true)
		if change != nil {
			change(s)
		}
		return s
	}
	create := func(change func(*discoveryv1.EndpointSlice)) error { return node.Create(t.Context(), slice(change)) }
	in := func(namespace, service string) func(*discoveryv1.EndpointSlice) {
		return func(s *discoveryv1.EndpointSlice) {
			s.Namespace, s.Endpoints[0].TargetRef.Namespace, s.Labels[discoveryv1.LabelServiceName] = namespace, namespace, service
		}
	}
	alsoOf := func(p *corev1.Pod) func(*discoveryv1.EndpointSlice) {
		return func(s *discoveryv1.EndpointSlice) {
			s.OwnerReferences = append(s.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID})
		}
	}
	other, foreign := "n2", slice(func(s *discoveryv1.EndpointSlice) { s.Name, s.Labels = "foreign", nil })
	if err := w.admin.Create(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	taken := slice(func(s *discoveryv1.EndpointSlice) { s.Name, s.ResourceVersion = "foreign", foreign.ResourceVersion })
	for what, err := range map[string]error{
		"the status of another node's pod":   patch(theirs, `{"metadata": {"annotations": {"a": "b"}}}`),
		"the addresses of a pod":             patch(ours, `{"status": {"podIPs": [{"ip": "10.9.9.9"}]}}`),
		"labels of a pod":                    patch(ours, `{"metadata": {"labels": {"app": "db"}}}`),
		"the slice of another node":          create(func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].NodeName = &other }),
		"a slice that is not tsugiki-kube's": create(func(s *discoveryv1.EndpointSlice) { delete(s.Labels, discoveryv1.LabelManagedBy) }),
		"the slice of somebody else":         node.Update(t.Context(), taken),
		"to delete that":                     node.Delete(t.Context(), foreign.DeepCopy()),
		"a slice of no pod":                  create(func(s *discoveryv1.EndpointSlice) { s.OwnerReferences = nil }),
		"a slice of two pods":                create(alsoOf(theirs)),
		"the slice of a ConfigMap":           create(func(s *discoveryv1.EndpointSlice) { s.OwnerReferences[0].Kind = "ConfigMap" }),
		"a slice that names another pod":     create(func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].TargetRef.UID = theirs.UID }),
		"a slice that names no pod":          create(func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].TargetRef = nil }),
		"a slice with another pod's label":   create(func(s *discoveryv1.EndpointSlice) { s.Labels[labelPod] = string(theirs.UID) }),
		"a slice with two endpoints":         create(func(s *discoveryv1.EndpointSlice) { s.Endpoints = append(s.Endpoints, s.Endpoints[0]) }),
		"a slice without endpoints":          create(func(s *discoveryv1.EndpointSlice) { s.Endpoints = nil }),
		"the cluster's DNS":                  create(in("kube-system", "kube-dns")),
		"the API server":                     create(in("default", "kubernetes")),
		"a namespace without a GraftPolicy":  create(in("default", "x")),
		"an endpoint":                        node.Create(t.Context(), &v1alpha1.GraftEndpoint{ObjectMeta: metav1.ObjectMeta{Name: "mine"}, Spec: v1alpha1.GraftEndpointSpec{Type: v1alpha1.IPv4}}),
		"a pod":                              node.Delete(t.Context(), theirs.DeepCopy()),
		"secrets":                            node.List(t.Context(), &corev1.SecretList{}),
	} {
		if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v, want that it is forbidden", what, err)
		}
	}
	if err := patch(ours, `{"metadata": {"annotations": {"a": "b"}}}`); err != nil {
		t.Errorf("an annotation of a pod of the node: %v", err)
	}
	mine := slice(nil)
	if err := errors.Join(node.Create(t.Context(), mine), node.Update(t.Context(), mine), node.Delete(t.Context(), mine)); err != nil {
		t.Errorf("a slice of the node: %v", err)
	}
	w.delete(foreign)
	w.delete(ours)
	w.delete(theirs)
}
