package node

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/kube/grant"
	"github.com/tsugiki/tsugiki/kube/kubetest"
	"github.com/tsugiki/tsugiki/kube/ports"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// givenPort is given for a pod with a port of the node.
func givenPort(port uint16) func(api.Grant) error {
	return func(g api.Grant) error {
		if err := given(g); err != nil {
			return err
		}
		if ep := g.Containers["nginx"].Endpoints[0]; !strings.HasSuffix(ep, fmt.Sprintf(" port %d", port)) {
			return fmt.Errorf("the endpoint is %q, want port %d", ep, port)
		}
		return nil
	}
}

// After a boot of the node the agent knows no pod. Each gets the port that its status says, as EndpointSlices
// lead there.
func testReboot(t *testing.T, w *world) {
	pods := []*corev1.Pod{w.pod("p", kubetest.NodeName, webLabels), w.pod("q", kubetest.NodeName, webLabels)}
	var status []corev1.PodCondition
	var claims []uint16
	for _, p := range pods {
		w.granted(p, given)
		now := w.condition(p, corev1.ConditionTrue, ReasonGranted, "")
		has, err := grant.ClaimsOf(now)
		if err != nil || len(has) != 1 {
			t.Fatalf("pod %s has %+v, %v", p.Name, has, err)
		}
		claims = append(claims, has[0].Host.Port())
		for _, c := range now.Status.Conditions {
			if c.Type == grant.ConditionPorts {
				status = append(status, c)
			}
		}
	}
	w.stop()
	for i, p := range pods {
		var now corev1.Pod
		if err := w.admin.Get(t.Context(), client.ObjectKeyFromObject(p), &now); err != nil {
			t.Fatal(err)
		}
		for j := range now.Status.Conditions {
			if c := &now.Status.Conditions[j]; c.Type == grant.ConditionPorts {
				*c = status[1-i]
			}
		}
		if err := w.admin.Status().Update(t.Context(), &now); err != nil {
			t.Fatal(err)
		}
	}
	w.agent = kubetest.NewAgent()
	w.start(time.Millisecond)
	for i, p := range pods {
		w.granted(p, givenPort(claims[1-i]))
	}
	for _, p := range pods {
		w.delete(p)
		w.gone(p)
	}
}

// A pod has no port of a rule that it does not have: not if it is refused, nor once the rule is another pod's.
func testLapsed(t *testing.T, w *world) {
	kubetest.Create(t, w.admin, `
apiVersion: tsugiki.dev/v1alpha1
kind: GraftEndpoint
metadata: {name: one}
spec: {type: IPv4, ports: "443", allowedPods: [{namespaceSelector: {matchLabels: {team: shop}}}]}
---
apiVersion: tsugiki.dev/v1alpha1
kind: GraftPolicy
metadata: {name: refused, namespace: shop}
spec: {podSelector: {matchLabels: {app: refused}}, ingress: [{endpoint: one, port: 443}, {endpoint: nowhere, port: 80}]}
---
apiVersion: tsugiki.dev/v1alpha1
kind: GraftPolicy
metadata: {name: one, namespace: shop}
spec:
  podSelector: {matchLabels: {app: b}}
  ingress: [{endpoint: one, port: 443, service: {name: one, port: https}}]
  egress: [{endpoint: out, to: [10.0.0.0/8]}]
`)
	named := func(name string) *corev1.Pod {
		p := w.pod(name, kubetest.NodeName, map[string]string{"app": name})
		w.agent.Register(api.Pod{Namespace: "shop", Name: name, UID: string(p.UID), Container: "nginx"}) // it waits: so there are refusals
		return p
	}
	a := named("refused")
	w.granted(a, refused("there is no GraftEndpoint nowhere"))
	b := named("b")
	w.granted(b, givenPort(443))
	w.register(b)
	w.available("one", 1, 0)

	const none = "none of the ports 443 is free"
	selects := func(app string) {
		t.Helper()
		policy := &v1alpha1.GraftPolicy{ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "shop"}}
		patch := fmt.Sprintf(`{"spec": {"podSelector": {"matchLabels": {"app": %q}}}}`, app)
		if app == "" {
			patch = `{"spec": {"podSelector": {"matchLabels": null, "matchExpressions": [{"key": "app", "operator": "In", "values": ["b", "c"]}]}}}`
		}
		if err := w.admin.Patch(t.Context(), policy, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
			t.Fatal(err)
		}
	}
	c := named("c")
	w.granted(c, refused("no GraftPolicy"))
	selects("c")
	w.granted(c, givenPort(443))
	w.granted(b, refused("no GraftPolicy"))
	selects("")
	w.granted(b, refused(none))
	w.delete(c)
	w.gone(c)
	w.granted(b, givenPort(443))
	for _, p := range []*corev1.Pod{a, b} {
		w.delete(p)
		w.gone(p)
	}
}

// Ports that containers have are adopted first, and then those that containers have had. The order of the pods does not matter.
func TestAdoptsHeldPortsFirst(t *testing.T) {
	endpoint := func(port int) string { return fmt.Sprintf("x type ipv4 addr %s port %d", testkit.HostAddr4, port) }
	n := &Node{ports: ports.New(nil), known: map[types.NamespacedName][]*known{}}
	n.adopt([]api.PodState{
		{UID: "a", Namespace: "shop", Name: "a", Running: map[string]api.Rules{"c": {Endpoints: []string{endpoint(31000), endpoint(31002)}}}},
		{UID: "b", Namespace: "shop", Name: "b", Running: map[string]api.Rules{"c": {Endpoints: []string{endpoint(31000)}, Ingress: []string{"0.0.0.0:80+from:10.0.0.0/8=x"}}}},
		{UID: "c", Namespace: "shop", Name: "c", Running: map[string]api.Rules{"c": {Endpoints: []string{endpoint(31001), endpoint(31003)}}}},
	})
	for pod, want := range map[string]uint16{"a": 31002, "b": 31000, "c": 31003} {
		got, err := n.ports.Of(pod, "shop").Take("", "x", v1alpha1.TCP, netip.Addr(testkit.HostAddr4), grant.Range{First: 31000, Last: 31009})
		if err != nil || got != want {
			t.Errorf("pod %s has port %d, %v, want %d", pod, got, err, want)
		}
	}
}
