package node

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/kube/grant"
	"github.com/tsugiki/tsugiki/kube/kubetest"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// testBare has a pod with containers that begin without rules, which a policy then names: the pod says so, also when the
// agent or tsugiki-kube has been started anew. An init container that is over needs nothing.
func testBare(t *testing.T, w *world) {
	kubetest.Create(t, w.admin, `{apiVersion: tsugiki.dev/v1alpha1, kind: GraftPolicy, metadata: {name: bare, namespace: shop},
		spec: {podSelector: {matchLabels: {app: bare}}, ingress: [{endpoint: web, port: 80}]}}`)
	p := podNamed("bare", kubetest.NodeName, map[string]string{"app": "bare"})
	p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "log", Image: "log"})
	p.Spec.InitContainers = []corev1.Container{{Name: "first", Image: "first"}}
	if err := w.create(p); err != nil {
		t.Fatal(err)
	}
	begin := func(container string) {
		t.Helper()
		if _, found := w.agent.Register(api.Pod{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Container: container}); !found {
			t.Fatal("the pod has no grant")
		}
	}
	w.granted(p, func(api.Grant) error { return nil })
	for _, container := range []string{"first", "log", "nginx"} {
		begin(container)
	}
	w.condition(p, corev1.ConditionTrue, ReasonGranted, "")
	policy := &v1alpha1.GraftPolicy{ObjectMeta: metav1.ObjectMeta{Name: "bare", Namespace: "shop"}}
	egress := `{"spec": {"egress": [{"endpoint": "out", "to": ["10.5.0.0/16"]}]}}`
	if err := w.admin.Patch(t.Context(), policy, client.RawPatch(types.MergePatchType, []byte(egress))); err != nil {
		t.Fatal(err)
	}
	const why = "the container began without rules"
	w.event(p, ReasonRestart, "log 10.5.0.0/16=")
	w.condition(p, corev1.ConditionFalse, ReasonRestart, "rules need new containers: first 10.5.0.0/16=")
	status := func(patch string) {
		t.Helper()
		if err := w.admin.Status().Patch(t.Context(), p.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, []byte(patch))); err != nil {
			t.Fatal(err)
		}
	}
	status(`{"status": {"conditions": [{"type": "Initialized", "status": "True"}]}}`)
	w.condition(p, corev1.ConditionFalse, ReasonRestart, "rules need new containers: log 10.5.0.0/16=")

	// Whoever is started anew finds it out again.
	w.stop()
	w.agent.Restart()
	status(`{"status": {"conditions": [{"type": "` + ConditionGrafted + `", "status": "True", "reason": "Granted", "message": ""}]}}`)
	w.start(time.Millisecond)
	w.condition(p, corev1.ConditionFalse, ReasonRestart, why)

	begin("log") // a new one, with rules
	w.condition(p, corev1.ConditionTrue, ReasonGranted, "")
	w.delete(p)
	w.gone(p)
}

// testFailed has an agent that cannot put a rule in force: the pod says why, and the grant is put again until it can.
func testFailed(t *testing.T, w *world) {
	w.stop()
	defer func() { w.again = 0 }()
	w.again = 20 * time.Millisecond
	w.start(time.Millisecond)
	p := w.pod("failing", kubetest.NodeName, webLabels)
	w.granted(p, given)
	w.register(p)
	w.condition(p, corev1.ConditionTrue, ReasonGranted, "")
	w.agent.Fail("10.6.0.0/16=")
	policy := &v1alpha1.GraftPolicy{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop"}}
	patch := `{"spec": {"egress": [{"endpoint": "out", "to": ["10.6.0.0/16"]}]}}`
	if err := w.admin.Patch(t.Context(), policy, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		t.Fatal(err)
	}
	w.event(p, ReasonWithdrawn, "10.") // what went is told in any case
	w.event(p, ReasonFailed, "nginx 10.6.0.0/16=")
	w.condition(p, corev1.ConditionFalse, ReasonFailed, "the port is taken")
	w.agent.Fail("")
	w.condition(p, corev1.ConditionTrue, ReasonGranted, "")
	w.delete(p)
	w.gone(p)
}

// The condition gives the reason of a container that is left, and says beside what fails what needs a new container.
func TestConditionOfNeeds(t *testing.T) {
	initialized := corev1.PodCondition{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}
	pod := &corev1.Pod{
		Spec:   corev1.PodSpec{InitContainers: []corev1.Container{{Name: "first"}}},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{initialized}},
	}
	k := &known{
		restart: map[string][]string{"first": {"-e a"}, "log": {"directForward: false"}, "web": {"-i b"}},
		because: map[string]string{"first": "of the first", "web": "of web"},
	}
	const needs = "rules need new containers: log directForward: false; web -i b; of web"
	n := &Node{}
	if c := n.condition(pod, k, &grant.Decision{}); c.Reason != ReasonRestart || c.Message != needs {
		t.Errorf("%s: %s", c.Reason, c.Message)
	}
	k.failed = []api.GrantFailure{{Container: "log", Rule: "-i c", Reason: "the port is taken"}}
	want := failedText(k.failed) + "; " + needs
	if c := n.condition(pod, k, &grant.Decision{}); c.Reason != ReasonFailed || c.Message != want {
		t.Errorf("%s: %s, want %s", c.Reason, c.Message, want)
	}
	if text := restartText(k.restart, nil); text != "rules need new containers: "+lines(k.restart) {
		t.Errorf("without a reason: %s", text)
	}
}
