package node

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/kube/grant"
	"github.com/tsugiki/tsugiki/kube/kubetest"
)

// asking makes a pod that asks by the annotation.
func (w *world) asking(name, class string) *corev1.Pod {
	w.t.Helper()
	p := podNamed(name, kubetest.NodeName, webLabels)
	p.Annotations = map[string]string{api.AnnotationGraft: "true"}
	if p.Spec.RuntimeClassName = nil; class != "" {
		p.Spec.RuntimeClassName = &class
	}
	p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}
	if err := w.create(p); err != nil {
		w.t.Fatal(err)
	}
	return p
}

// runs has a pod's container run and be ready, as the kubelet says it.
func (w *world) runs(p *corev1.Pod, id string) {
	w.t.Helper()
	status := map[string]any{"containerStatuses": []corev1.ContainerStatus{{
		Name: "nginx", ContainerID: "containerd://" + id,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
	}}}
	patch, err := json.Marshal(map[string]any{"status": status})
	if err == nil {
		err = w.admin.Status().Patch(w.t.Context(), p.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, patch))
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.ready(p, corev1.ConditionTrue)
}

// A pod that asks by the annotation has ports once the agent has its container. If it has not, the pod's
// owner hears of it, and no Service leads to it.
func testAnnotated(t *testing.T, w *world) {
	p := w.asking("asks", "")
	w.granted(p, given)
	w.condition(p, corev1.ConditionFalse, ReasonPending, "")
	w.register(p)
	w.agent.Run(api.Container{ID: "c1", PID: 1})
	w.runs(p, "c1")
	now := w.condition(p, corev1.ConditionTrue, ReasonGranted, "")
	w.available("web", 1, 1)
	if now.Annotations[AnnotationPorts] == "" {
		t.Errorf("annotations %v", now.Annotations)
	}

	// The next container is made without the plugin.
	w.agent.Run()
	w.runs(p, "c2")
	w.event(p, ReasonMissing, "container nginx, which was made while tsugiki-nri did not run")
	w.condition(p, corev1.ConditionFalse, ReasonMissing, "delete the pod")
	w.available("web", 0, 0)
	// One that is registered, and whose program is not the agent's, is missing too.
	w.agent.Run(api.Container{ID: "c3"})
	w.runs(p, "c3")
	w.condition(p, corev1.ConditionFalse, ReasonMissing, "delete the pod")
	// And the one after that is grafted.
	w.agent.Run(api.Container{ID: "c4", PID: 1})
	w.runs(p, "c4")
	w.condition(p, corev1.ConditionTrue, ReasonGranted, "")
	w.available("web", 1, 1)

	// Whoever takes the annotation away loses the rules. The pod's status says so before another pod may
	// have its port, and no Service leads to it.
	if err := w.admin.Patch(t.Context(), now, client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"annotations": {"`+api.AnnotationGraft+`": null}}}`))); err != nil {
		t.Fatal(err)
	}
	w.gone(p)
	now = w.condition(p, corev1.ConditionFalse, ReasonNotAsked, api.AnnotationGraft)
	for _, c := range now.Status.Conditions {
		if c.Type == grant.ConditionPorts && c.Status != corev1.ConditionFalse || now.Annotations[AnnotationPorts] != "" {
			t.Errorf("ports stay: %+v, %v", c, now.Annotations)
		}
	}
	w.available("web", 0, 0)
	w.agent.Run()
	// What happens to another pod after that says that the status of this one is in the node's cache: it wakes the
	// pod once more, which takes a refusal away.
	later := w.pod("later", kubetest.NodeName, webLabels)
	w.granted(later, given)
	w.delete(later)
	w.gone(later)
	// Its next container does not wait, and each try is refused.
	next := api.Pod{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Container: "nginx"}
	for range 2 {
		w.agent.Register(next)
		w.granted(p, refused("any more"))
		w.agent.Register(next)
		w.gone(p)
	}
	w.delete(p)
}

// What the specification alone refuses is refused at once, and said if a container runs all the same.
func testAnnotatedRefused(t *testing.T, w *world) {
	kubetest.Create(t, w.admin, `{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: kata}, handler: kata}`)
	p := w.asking("kata", "kata")
	w.granted(p, refused("has kata"))
	w.runs(p, "k1")
	w.event(p, ReasonRefused, "in the pod's own network alone: container nginx")
	w.condition(p, corev1.ConditionFalse, ReasonRefused, "has kata")
	w.delete(p)
	w.gone(p)

	raw := podNamed("raw", kubetest.NodeName, webLabels)
	raw.Annotations, raw.Spec.RuntimeClassName = map[string]string{api.AnnotationGraft: "true"}, nil
	if err := w.create(raw); err != nil {
		t.Fatal(err)
	}
	w.granted(raw, refused("may have CAP_NET_RAW"))
	w.delete(raw)
	w.gone(raw)

	ours := w.asking("both", "tsugiki")
	w.granted(ours, given)
	w.condition(ours, corev1.ConditionTrue, ReasonGranted, "")
	w.delete(ours)
	w.gone(ours)

	other := podNamed("word", kubetest.NodeName, webLabels)
	other.Annotations, other.Spec.RuntimeClassName = map[string]string{api.AnnotationGraft: "yes"}, nil
	if err := w.create(other); err != nil {
		t.Fatal(err)
	}
	next := w.asking("next", "") // the watch has both in this order
	w.granted(next, given)
	if g, found := w.agent.Grant(string(other.UID)); found {
		t.Errorf("a pod that does not ask has the grant %+v", g)
	}
	w.delete(other)
	w.delete(next)
	w.gone(next)
}

// A pod that asks by the annotation is refused soon: its runtime does not wait for long.
func TestAnnotatedGrace(t *testing.T) {
	n := &Node{Options: Options{Grace: Grace, Classes: []string{"tsugiki"}}}
	p := podNamed("p", "n", nil)
	if got := n.graceFor(p); got != Grace {
		t.Errorf("of a RuntimeClass: %v", got)
	}
	p.Annotations, p.Spec.RuntimeClassName = map[string]string{api.AnnotationGraft: "true"}, nil
	if got := n.graceFor(p); got != annotatedGrace || got > time.Second/2 {
		t.Errorf("of the annotation: %v", got)
	}
}

// What is said of a container that the agent does not have.
func TestWatchOver(t *testing.T) {
	p := podNamed("p", "n", nil)
	p.Annotations, p.Spec.RuntimeClassName = map[string]string{api.AnnotationGraft: "true"}, nil
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "nginx", ContainerID: "containerd://1", State: corev1.ContainerState{
		Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(time.Now().Add(-time.Hour))},
	}}}
	ruled := &grant.Decision{Grant: api.Grant{Containers: map[string]api.Rules{"nginx": {}}}}
	unruled := &grant.Decision{}
	refused := &grant.Decision{Grant: api.Grant{Refused: "no"}}
	for what, tt := range map[string]struct {
		after     time.Duration
		decisions []*grant.Decision
		reason    string // of the condition
		event     string
	}{
		"it may have ended since":         {time.Hour, []*grant.Decision{ruled}, ReasonPending, ""},
		"it is looked for in vain":        {-1, []*grant.Decision{ruled}, ReasonMissing, "Warning GraftMissing"},
		"its rules are younger":           {-1, []*grant.Decision{unruled, ruled, ruled}, ReasonRestart, "Normal GraftRestartNeeded"},
		"it is refused, and had no rules": {-1, []*grant.Decision{unruled, refused}, "", ""},
		"it is refused, and runs":         {-1, []*grant.Decision{refused}, ReasonMissing, "Warning GraftRefused"},
	} {
		recorder := events.NewFakeRecorder(10)
		n := &Node{Options: Options{Agent: kubetest.NewAgent(), MissingAfter: tt.after}, events: recorder}
		k := &known{}
		for _, d := range tt.decisions {
			again, err := n.watchOver(p, k, d)
			if err != nil || (again > 0) != (tt.after > 0) {
				t.Errorf("%s: looks again after %v, %v", what, again, err)
			}
		}
		c := k.notYet(tt.decisions[len(tt.decisions)-1])
		if c == nil {
			c = &corev1.PodCondition{}
		}
		if c.Reason != tt.reason {
			t.Errorf("%s: the condition is %+v, want %q", what, c, tt.reason)
		}
		close(recorder.Events)
		event := ""
		for e := range recorder.Events {
			event += e
		}
		if !strings.HasPrefix(event, tt.event) || tt.event == "" && event != "" || strings.Count(event, "Graft") > 1 {
			t.Errorf("%s: events %q, want %q", what, event, tt.event)
		}
	}
}

// A container that starts anew keeps its ports, until it runs without the agent.
func TestReachable(t *testing.T) {
	p := podNamed("p", "n", nil)
	p.Annotations, p.Spec.RuntimeClassName = map[string]string{api.AnnotationGraft: "true"}, nil
	d := &grant.Decision{Served: []grant.Served{{Container: "nginx", Port: 80}}}
	n, k := &Node{}, &known{}
	runs := &corev1.ContainerStateRunning{}
	for _, tt := range []struct {
		grafted, id string
		running     *corev1.ContainerStateRunning
		want        int
	}{{"", "", nil, 0}, {"", "1", runs, 0}, {"1", "1", runs, 1}, {"1", "1", nil, 1}, {"1", "2", runs, 0}} {
		k.grafted = map[string]string{"nginx": tt.grafted}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "nginx", ContainerID: "containerd://" + tt.id, State: corev1.ContainerState{Running: tt.running}}}
		if got := n.reachable(p, k, d); len(got) != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
	}
}
