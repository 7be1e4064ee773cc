package node

import (
	"fmt"
	"slices"
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
	more := `{"spec": {"egress": [{"endpoint": "out", "to": ["10.5.0.0/16"]}],
		"ingress": [{"endpoint": "web", "port": 80}, {"endpoint": "web", "port": 81, "container": "log", "service": {"name": "bare"}}]}}`
	if err := w.admin.Patch(t.Context(), policy, client.RawPatch(types.MergePatchType, []byte(more))); err != nil {
		t.Fatal(err)
	}
	const why = "the container began without rules"
	w.event(p, ReasonRestart, "10.5.0.0/16=")
	w.condition(p, corev1.ConditionFalse, ReasonRestart, "rules need new containers: first 10.5.0.0/16=")
	// The condition of ports may be of a write before, or after, that of the other one.
	serves := func(containers ...string) {
		t.Helper()
		testkit.Eventually(t, func() error {
			var now corev1.Pod
			if err := w.admin.Get(t.Context(), client.ObjectKeyFromObject(p), &now); err != nil {
				return err
			}
			claims, err := grant.ClaimsOf(&now)
			var has []string
			for _, s := range claims {
				has = append(has, s.Container)
			}
			if err == nil && !slices.Equal(has, containers) {
				err = fmt.Errorf("containers %v have ports, want %v", has, containers)
			}
			return err
		})
	}
	serves("nginx")
	status := func(patch string) {
		t.Helper()
		if err := w.admin.Status().Patch(t.Context(), p.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, []byte(patch))); err != nil {
			t.Fatal(err)
		}
	}
	status(`{"status": {"conditions": [{"type": "Initialized", "status": "True"}]}}`)
	w.condition(p, corev1.ConditionFalse, ReasonRestart, "rules need new containers: log 0.0.0.0:81/tcp=")

	// Whoever is started anew finds it out again.
	w.stop()
	w.agent.Restart()
	status(`{"status": {"conditions": [{"type": "` + ConditionGrafted + `", "status": "True", "reason": "Granted", "message": ""}]}}`)
	w.start(time.Millisecond)
	w.condition(p, corev1.ConditionFalse, ReasonRestart, why)
	serves("nginx")
	w.available("bare", 0, 0)

	begin("log") // a new one, with rules
	w.condition(p, corev1.ConditionTrue, ReasonGranted, "")
	serves("nginx", "log")
	w.available("bare", 1, 0)
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

// No Service leads to the port of a rule that the agent has not put in force.
func TestReachableRules(t *testing.T) {
	d := &grant.Decision{Served: []grant.Served{{Container: "log", Rule: "g1"}, {Container: "log", Rule: "g2"}, {Container: "web", Rule: "g1"}, {Container: "web", Rule: "g3"}}}
	for name, tt := range map[string]struct {
		k    known
		want []int
	}{
		"all":                            {known{}, []int{0, 1, 2, 3}},
		"a container without rules":      {known{restart: map[string][]string{"log": {"-i 0.0.0.0:80/tcp=g1", "-i 0.0.0.0:81/tcp+own=g2"}}}, []int{2, 3}},
		"what is no rule":                {known{restart: map[string][]string{"log": {"directForward: false", "mode: seccomp"}}}, []int{0, 1, 2, 3}},
		"a port that another one has":    {known{failed: []api.GrantFailure{{Container: "web", Rule: "-i 0.0.0.0:80/tcp=g3", Reason: "taken"}}}, []int{0, 1, 2}},
		"rules that may be in force yet": {known{failed: []api.GrantFailure{{Container: "web", Reason: "the disk is full"}}}, []int{0, 1, 2, 3}},
	} {
		var want []grant.Served
		for _, i := range tt.want {
			want = append(want, d.Served[i])
		}
		if got := (&Node{}).reachable(podNamed("p", "n", nil), &tt.k, d); !slices.EqualFunc(got, want, func(a, b grant.Served) bool { return a.Container == b.Container && a.Rule == b.Rule }) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}
