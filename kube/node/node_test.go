package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
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
		{"grants that the agent refuses", testAgentRefuses},
		{"containers that began without rules", testBare},
		{"grants that the node cannot have", testFailed},
		{"restarts", testRestarts},
		{"an endpoint that comes after its policy", testAwaits},
		{"a boot of the node", testReboot},
		{"ports of rules that pods do not have", testLapsed},
		{"a pod of the same name", testSameName},
		{"pods that a rule selects", testPeers},
		{"pods whose IPv4 is translated", testTranslated},
		{"pods that ask by an annotation", testAnnotated},
		{"pods that ask by an annotation, and are refused", testAnnotatedRefused},
		{"the status of a pod that has gone", testOldStatus},
		{"the status of a newer API server", testNewerFields},
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
	var list []grant.Served
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
	w.granted(p, func(g api.Grant) error {
		if r := g.Containers["nginx"]; len(r.Egress) != 1 || !strings.HasPrefix(r.Egress[0], "10.2.0.0/16=") {
			return fmt.Errorf("grant %+v, want the new rule", g)
		}
		return nil
	})
	w.condition(p, corev1.ConditionTrue, ReasonGranted, "")
	moveWeb := func(ports string) {
		t.Helper()
		web := &v1alpha1.GraftEndpoint{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
		if err := w.admin.Patch(t.Context(), web, client.RawPatch(types.MergePatchType, []byte(`{"spec": {"ports": "`+ports+`"}}`))); err != nil {
			t.Fatal(err)
		}
	}
	moveWeb("32000-32009")
	w.event(p, ReasonMoved, "0.0.0.0:80/tcp=")
	testkit.Eventually(t, func() error {
		if hosts := w.available("web", 1, 0); hosts[0].Port() < 32000 || hosts[0].Port() > 32009 {
			return fmt.Errorf("the Service's endpoint is %v, want a port of the endpoint's new range", hosts)
		}
		return nil
	})
	w.condition(p, corev1.ConditionTrue, ReasonGranted, "")
	moveWeb("31000-31999")
	own := func(is bool) {
		t.Helper()
		patch := fmt.Sprintf(`{"spec": {"ingress": [{"endpoint": "web", "port": 80, "own": %v, "service": {"name": "web", "port": "http"}}]}}`, is)
		if err := w.admin.Patch(t.Context(), policy, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
			t.Fatal(err)
		}
	}
	own(true)
	w.event(p, ReasonRestart, "0.0.0.0:80/tcp+own=")
	w.condition(p, corev1.ConditionFalse, ReasonRestart, "it needs accept(2) to be trapped")
	w.register(p) // a new container
	w.condition(p, corev1.ConditionTrue, ReasonGranted, "")
	own(false)
	w.granted(p, func(g api.Grant) error {
		if r := g.Containers["nginx"].Ingress; len(r) != 1 || strings.Contains(r[0], "+own") {
			return fmt.Errorf("rules %q, want none with +own", r)
		}
		return nil
	})
	w.condition(p, corev1.ConditionTrue, ReasonGranted, "")
	w.delete(p)
	w.gone(p)
}

// A grant that the agent refuses takes away the one before, and the pod says why.
func testAgentRefuses(t *testing.T, w *world) {
	p := w.pod("large", kubetest.NodeName, webLabels)
	w.granted(p, given)
	w.register(p)
	w.condition(p, corev1.ConditionTrue, ReasonGranted, "")
	w.agent.Refuse(func(g api.Grant) error {
		if r := g.Containers["nginx"]; slices.ContainsFunc(r.Egress, func(r string) bool { return strings.HasPrefix(r, "10.3.0.0/16=") }) {
			return fmt.Errorf("%w: 9000 rules and sources, at most 8192 may be", api.ErrInvalid)
		}
		return nil
	})
	defer w.agent.Refuse(nil)
	policy := &v1alpha1.GraftPolicy{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop"}}
	reach := func(prefix string) {
		t.Helper()
		patch := `{"spec": {"egress": [{"endpoint": "out", "to": ["` + prefix + `"]}]}}`
		if err := w.admin.Patch(t.Context(), policy, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
			t.Fatal(err)
		}
	}
	reach("10.3.0.0/16")
	const why = "9000 rules and sources, at most 8192 may be"
	w.granted(p, refused(why))
	w.event(p, ReasonWithdrawn, why)
	w.condition(p, corev1.ConditionFalse, ReasonRefused, why)
	w.available("web", 0, 0)
	reach("10.2.0.0/16")
	w.granted(p, given)
	w.available("web", 1, 0)
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

// A pod of a StatefulSet has the name of the one before, and nothing of it. The status of the one
// before may be under way when the next one is made.
func testSameName(t *testing.T, w *world) {
	for range testkit.Times(20, 500) {
		old := w.pod("db-0", kubetest.NodeName, webLabels)
		w.granted(old, given)
		w.delete(old)
		young := w.pod("db-0", kubetest.NodeName, webLabels)
		w.granted(young, given)
		w.gone(old)
		w.delete(young)
		w.gone(young)
	}
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

// The status of a pod is not written to another one of its name, and that is nothing to try again.
func testOldStatus(t *testing.T, w *world) {
	w.stop()
	old := w.pod("db-1", kubetest.NodeName, webLabels)
	w.delete(old)
	d := &grant.Decision{Grant: api.Grant{Refused: "this is about the old one"}}
	c := kubetest.Client(t, w.config)
	n := &Node{Options: Options{Log: log}, client: c, live: c}
	if err := n.writeStatus(t.Context(), old, &known{}, d); err != nil {
		t.Errorf("no pod has the name: %v", err)
	}
	young := w.pod("db-1", kubetest.NodeName, webLabels)
	if err := n.writeStatus(t.Context(), old, &known{}, d); err != nil {
		t.Errorf("another pod has the name: %v", err)
	}
	if err := w.admin.Get(t.Context(), client.ObjectKeyFromObject(young), young); err != nil || len(young.Status.Conditions) > 0 {
		t.Errorf("the other pod has the conditions %+v, %v", young.Status.Conditions, err)
	}
	if err := n.writeStatus(t.Context(), young, &known{}, d); err != nil {
		t.Error(err)
	}
	w.condition(young, corev1.ConditionFalse, ReasonRefused, "this is about the old one")
	w.delete(young)
}

// A status is written with the fields that a newer API server has, and that nobody here knows.
func testNewerFields(t *testing.T, w *world) {
	w.stop()
	p := w.pod("newer", kubetest.NodeName, webLabels)
	newer := rest.CopyConfig(w.config)
	written := 0
	newer.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if !strings.Contains(r.URL.Path, "/pods/newer") {
				return next.RoundTrip(r)
			}
			if r.Method == http.MethodPut {
				text, err := io.ReadAll(r.Body)
				if err != nil {
					return nil, err
				}
				var body struct {
					Status struct{ FromLater string }
				}
				if err := json.Unmarshal(text, &body); err != nil || body.Status.FromLater != "kept" {
					t.Errorf("the status is written without the field: %v, %.200q", err, text)
				}
				written++
				r.Body = io.NopCloser(bytes.NewReader(text))
				return next.RoundTrip(r)
			}
			answer, err := next.RoundTrip(r)
			if err != nil || !strings.HasPrefix(answer.Header.Get("Content-Type"), "application/json") {
				return answer, err
			}
			defer answer.Body.Close()
			var object map[string]any
			if err := json.NewDecoder(answer.Body).Decode(&object); err != nil {
				return nil, err
			}
			if status, is := object["status"].(map[string]any); is {
				status["fromLater"] = "kept"
			}
			text, err := json.Marshal(object)
			answer.Body, answer.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
			answer.Header.Del("Content-Length")
			return answer, err
		})
	}
	c := kubetest.Client(t, newer)
	n := &Node{Options: Options{Log: log}, client: c, live: c}
	if err := n.writeStatus(t.Context(), p, &known{}, &grant.Decision{Grant: api.Grant{Refused: "no"}}); err != nil || written != 1 {
		t.Errorf("%d writes, %v", written, err)
	}
	now := w.condition(p, corev1.ConditionFalse, ReasonRefused, "no")
	if now.Status.HostIP != testkit.HostAddr4.String() {
		t.Errorf("the status is now %+v", now.Status)
	}
	w.delete(p)
}
