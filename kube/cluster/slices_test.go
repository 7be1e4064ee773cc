package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

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

const serving = kubetest.Shop + `
apiVersion: v1
kind: ServiceAccount
metadata: {name: default, namespace: shop}
---
apiVersion: tsugiki.dev/v1alpha1
kind: GraftPolicy
metadata: {name: web, namespace: shop}
spec: {podSelector: {matchLabels: {app: web}}, ingress: [{endpoint: web, port: 80, service: {name: web, port: http}}]}
`

// shop is an API server with the controllers and the resources above.
type shop struct {
	t     *testing.T
	admin client.Client
	rule  string // the name of the rule's endpoint
}

// pod makes a pod whose kubelet has written the addresses of the node.
func (s *shop) pod(name string) *corev1.Pod {
	s.t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "shop", Labels: map[string]string{"app": "web"}, Annotations: map[string]string{api.AnnotationGraft: "true"},
		},
		Spec: corev1.PodSpec{NodeName: "n1", AutomountServiceAccountToken: new(bool), Containers: []corev1.Container{{
			Name: "nginx", Image: "nginx", SecurityContext: &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
		}}},
	}
	if err := s.admin.Create(s.t.Context(), p); err != nil {
		s.t.Fatal(err)
	}
	s.patch(p, map[string]any{"hostIP": "198.51.100.7", "hostIPs": []corev1.HostIP{{IP: "198.51.100.7"}, {IP: "2001:db8::7"}}})
	return p
}

// patch changes the status of a pod.
func (s *shop) patch(p *corev1.Pod, status any) {
	s.t.Helper()
	text, err := json.Marshal(map[string]any{"status": status})
	if err == nil {
		err = s.admin.Status().Patch(s.t.Context(), p.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, text))
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// says has a node say of a pod what the pod serves.
func (s *shop) says(p *corev1.Pod, message string) {
	s.t.Helper()
	s.patch(p, map[string]any{"conditions": []corev1.PodCondition{{Type: grant.ConditionPorts, Status: corev1.ConditionTrue, Message: message}}})
}

// ruleOf is the name of the endpoint of a policy's rule, as a node has it.
func (s *shop) ruleOf(name string) string {
	s.t.Helper()
	var e v1alpha1.GraftEndpoint
	var policy v1alpha1.GraftPolicy
	err := errors.Join(s.admin.Get(s.t.Context(), types.NamespacedName{Name: "web"}, &e),
		s.admin.Get(s.t.Context(), types.NamespacedName{Namespace: "shop", Name: name}, &policy))
	if err != nil {
		s.t.Fatal(err)
	}
	q := grant.Question{
		Pod:       &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "nginx"}}}},
		Namespace: map[string]string{"team": "shop"}, Policies: []*v1alpha1.GraftPolicy{&policy}, Ports: first{},
		Endpoint: func(string) *v1alpha1.GraftEndpoint { return &e }, Node: grant.Node{IPv4: netip.MustParseAddr("198.51.100.7")},
	}
	d := grant.Decide(&q)
	if len(d.Served) != 1 {
		s.t.Fatalf("the decision is %+v, want one port", d)
	}
	return d.Served[0].Rule
}

// first gives each rule the first port of its range.
type first struct{}

func (first) Take(_, _ string, _ v1alpha1.Protocol, _ netip.Addr, within grant.Range) (uint16, error) {
	return within.First, nil
}

// has waits until the slices of a pod have some endpoints, and returns the slices.
func (s *shop) has(p *corev1.Pod, want ...string) (owned []discoveryv1.EndpointSlice) {
	s.t.Helper()
	testkit.Eventually(s.t, func() error {
		var list discoveryv1.EndpointSliceList
		if err := s.admin.List(s.t.Context(), &list, client.InNamespace("shop")); err != nil {
			return err
		}
		owned = slices.DeleteFunc(list.Items, func(o discoveryv1.EndpointSlice) bool { return o.OwnerReferences[0].UID != p.UID })
		var hosts []string
		for _, o := range owned {
			if o.Labels[discoveryv1.LabelServiceName] != "web" || *o.Ports[0].Name != "http" || *o.Endpoints[0].NodeName != "n1" || o.Endpoints[0].TargetRef.UID != p.UID {
				return fmt.Errorf("slice %+v of pod %s", o, p.Name)
			}
			for _, port := range o.Ports {
				hosts = append(hosts, fmt.Sprintf("%s:%d", o.Endpoints[0].Addresses[0], *port.Port))
			}
		}
		if !slices.Equal(hosts, want) {
			return fmt.Errorf("endpoints of pod %s: %v, want %v", p.Name, hosts, want)
		}
		return nil
	})
	return owned
}

// TestSlices is one test, because API servers take some seconds to start.
func TestSlices(t *testing.T) {
	server, admin := start(t)
	kubetest.Create(t, admin, serving)
	s := &shop{t: t, admin: admin}
	s.rule = s.ruleOf("web")
	for _, test := range []struct {
		name string
		run  func(*testing.T, *shop)
	}{
		{"what a node is believed", testBelieved},
		{"a pod that asks no more", testAsksNoMore},
		{"resources that change", testChanged},
		{"rules that come", testAnotherRule},
		{"another pod of the name", testAnother},
		{"a slice that cannot be", testInvalid},
		{"a node with an earlier tsugiki-kube", testEarlier},
	} {
		t.Run(test.name, func(t *testing.T) {
			s.t = t
			test.run(t, s)
		})
	}
	t.Run("what the cluster's process may not do", func(t *testing.T) {
		s.t = t
		testPermissions(t, s, kubetest.Client(t, server.Config(kubetest.Token(t, admin, "tsugiki-kube-cluster", ""))))
	})
}

// A node says which port a pod has. It is believed nothing else, and no port that is not the
// endpoint's.
func testBelieved(t *testing.T, s *shop) {
	p := s.pod("liar")
	s.says(p, s.port("198.51.100.7:31001"))
	s.has(p, "198.51.100.7:31001")
	s.says(p, s.port("10.9.9.9:31002")) // an address that the node has not
	s.has(p, "198.51.100.7:31002")
	for _, lie := range []string{s.port("198.51.100.7:22"), "[]", "nonsense", `[{"host": "198.51.100.7:31001", "rule": "gffffffffffffff"}]`} {
		s.says(p, lie)
		s.has(p)
		s.says(p, s.port("198.51.100.7:31001"))
		s.has(p, "198.51.100.7:31001")
	}
	s.delete(p)
	s.has(p)
}

// A Service leads to no pod that asks to be grafted no more: its node gives the port to another pod.
func testAsksNoMore(t *testing.T, s *shop) {
	p := s.pod("p")
	s.says(p, s.port("198.51.100.7:31001"))
	s.has(p, "198.51.100.7:31001")
	for value, want := range map[string][]string{`null`: nil, `"false"`: nil, `"true"`: {"198.51.100.7:31001"}} {
		patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"annotations": {"`+api.AnnotationGraft+`": `+value+`}}}`))
		if err := s.admin.Patch(t.Context(), p.DeepCopy(), patch); err != nil {
			t.Fatal(err)
		}
		s.has(p, want...)
	}
	s.delete(p)
}

func testChanged(t *testing.T, s *shop) {
	p := s.pod("p")
	s.says(p, s.port("198.51.100.7:31001"))
	policy := &v1alpha1.GraftPolicy{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop"}}
	e := &v1alpha1.GraftEndpoint{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
	for _, change := range []struct {
		object    client.Object
		away, yet string
	}{
		{policy, `{"spec": {"podSelector": {"matchLabels": {"app": "db"}}}}`, `{"spec": {"podSelector": {"matchLabels": {"app": "web"}}}}`},
		{e, `{"spec": {"ports": "80"}}`, `{"spec": {"ports": "31000-31999"}}`},
		{namespace, `{"metadata": {"labels": {"team": "bank"}}}`, `{"metadata": {"labels": {"team": "shop"}}}`},
	} {
		s.has(p, "198.51.100.7:31001")
		for _, patch := range []string{change.away, change.yet} {
			if err := s.admin.Patch(t.Context(), change.object, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
				t.Fatal(err)
			}
			if patch == change.away {
				s.has(p)
			}
		}
	}
	s.has(p, "198.51.100.7:31001")
	s.delete(p)
}

// A rule that comes takes away no slice of the pod's others while the node has not said which port the new one has.
func testAnotherRule(t *testing.T, s *shop) {
	policy := s.another("web-more", "web", "more")
	p := s.pod("p")
	s.says(p, s.text(s.served("198.51.100.7:31001"), s.servedBy(policy, "198.51.100.7:31011")))
	before := s.has(p, "198.51.100.7:31001", "198.51.100.7:31011") // so the policy is known
	s.says(p, s.port("198.51.100.7:31002"))
	if after := s.has(p, "198.51.100.7:31002"); after[0].UID != before[0].UID {
		t.Errorf("slice %s is another one", after[0].Name)
	}
	s.delete(p)
	if err := s.admin.Delete(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
}

// another makes a policy that has the pods listen at another port for a Service.
func (s *shop) another(name, service, port string) *v1alpha1.GraftPolicy {
	s.t.Helper()
	policy := &v1alpha1.GraftPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop"},
		Spec: v1alpha1.GraftPolicySpec{
			PodSelector: v1alpha1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Ingress:     []v1alpha1.IngressRule{{Endpoint: "web", Port: 81, Service: &v1alpha1.ServicePort{Name: service, Port: port}}},
		},
	}
	if err := s.admin.Create(s.t.Context(), policy); err != nil {
		s.t.Fatal(err)
	}
	return policy
}

func testAnother(_ *testing.T, s *shop) {
	old := s.pod("db-0")
	s.says(old, s.port("198.51.100.7:31001"))
	s.has(old, "198.51.100.7:31001")
	s.delete(old)
	young := s.pod("db-0")
	s.says(young, s.port("198.51.100.7:31003"))
	s.has(young, "198.51.100.7:31003")
	s.has(old)
	s.patch(young, map[string]any{"phase": corev1.PodFailed})
	s.has(young)
	s.delete(young)
}

// A slice that the API server does not take keeps no other slice of the pod from being written: here
// that of a Service whose name is none.
func testInvalid(t *testing.T, s *shop) {
	policy := s.another("invalid", "A_", "http")
	p := s.pod("invalid")
	s.says(p, s.text(s.served("198.51.100.7:31006"), s.servedBy(policy, "198.51.100.7:31007")))
	s.has(p, "198.51.100.7:31006")
	s.delete(p)
	if err := s.admin.Delete(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
}

// The slices of a pod without the condition stay until the pod goes.
func testEarlier(t *testing.T, s *shop) {
	old := s.pod("old")
	theirs := slice("theirs", old, "web", netip.MustParseAddr("198.51.100.7"))
	name, port := "http", int32(31004)
	theirs.Ports = []discoveryv1.EndpointPort{{Name: &name, Port: &port}}
	if err := s.admin.Create(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	sentinel := s.pod("sentinel")
	s.says(sentinel, s.port("198.51.100.7:31005"))
	s.has(sentinel, "198.51.100.7:31005")
	s.has(old, "198.51.100.7:31004")
	s.delete(old)
	s.has(old)
	s.delete(sentinel)
}

func testPermissions(t *testing.T, s *shop, c client.Client) {
	p := s.pod("a")
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"annotations": {"a": "b"}}}`))
	for what, err := range map[string]error{
		"a pod":               c.Delete(t.Context(), p.DeepCopy()),
		"the status of a pod": c.Status().Patch(t.Context(), p.DeepCopy(), patch),
		"an endpoint":         c.Patch(t.Context(), &v1alpha1.GraftEndpoint{ObjectMeta: metav1.ObjectMeta{Name: "web"}}, patch),
		"secrets":             c.List(t.Context(), &corev1.SecretList{}),
		"Services":            c.List(t.Context(), &corev1.ServiceList{}),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want that it is forbidden", what, err)
		}
	}
	s.delete(p)
}

// served is a port of the node that a pod has by the policy web.
func (s *shop) served(at string) grant.Served {
	return grant.Served{Container: "nginx", Port: 80, Protocol: v1alpha1.TCP, Host: netip.MustParseAddrPort(at), Rule: s.rule}
}

// servedBy is one by another policy.
func (s *shop) servedBy(p *v1alpha1.GraftPolicy, at string) grant.Served {
	s.t.Helper()
	more := s.served(at)
	more.Port, more.Rule = 81, s.ruleOf(p.Name)
	return more
}

// text is what a node says of a pod with ports of the node.
func (s *shop) text(list ...grant.Served) string {
	s.t.Helper()
	text, err := json.Marshal(list)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(text)
}

// port is what a node says of a pod with one of them.
func (s *shop) port(at string) string {
	s.t.Helper()
	return s.text(s.served(at))
}

func (s *shop) delete(p *corev1.Pod) {
	s.t.Helper()
	if err := s.admin.Delete(s.t.Context(), p, client.GracePeriodSeconds(0)); err != nil {
		s.t.Fatal(err)
	}
}
