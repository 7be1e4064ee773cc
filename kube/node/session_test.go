package node

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/kube/grant"
	"github.com/tsugiki/tsugiki/kube/kubetest"
	"github.com/tsugiki/tsugiki/kube/ports"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// A container that was refused does not wait. Of a pod that the caches never have, such as a static
// one, nothing else says so. A pod that is known waits until it is put or gone.
func TestWaitingEnds(t *testing.T) {
	n := &Node{
		Options: Options{Log: slog.New(slog.DiscardHandler)}, events: events.NewFakeRecorder(4),
		wake: make(chan event.TypedGenericEvent[client.Object], 4), known: map[types.NamespacedName][]*known{}, waiting: map[string]time.Time{},
	}
	n.note(types.NamespacedName{Namespace: "shop", Name: "web"}, "u1")
	for _, uid := range []string{"u1", "static"} {
		pod := api.Pod{Namespace: "shop", Name: "web", UID: uid, Container: "c"}
		n.handle(t.Context(), api.PodEvent{Type: api.PodWaiting, Pod: pod})
		if n.waiting[uid].IsZero() {
			t.Errorf("the pod %s does not wait", uid)
		}
		n.handle(t.Context(), api.PodEvent{Type: api.PodRefused, Pod: pod, Reason: "no grant has come"})
	}
	if _, waits := n.waiting["u1"]; !waits || len(n.waiting) != 1 {
		t.Errorf("pods that wait: %v, want u1", n.waiting)
	}
}

// empty is a client of caches that have no pod any more.
type empty struct{ client.Client }

func (empty) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return apierrors.NewNotFound(corev1.Resource("pods"), "")
}

// Another pod gets the port that a pod has claimed which goes before the first decision about it.
func TestClaimsEnd(t *testing.T) {
	pod := podNamed("web", kubetest.NodeName, nil)
	pod.UID = "u1"
	text, err := json.Marshal([]grant.Served{{Rule: "x", Host: netip.AddrPortFrom(netip.Addr(testkit.HostAddr4), 443)}})
	if err != nil {
		t.Fatal(err)
	}
	pod.Status.Conditions = []corev1.PodCondition{{Type: grant.ConditionPorts, Status: corev1.ConditionTrue, Message: string(text)}}
	n := &Node{
		Options: Options{Log: slog.New(slog.DiscardHandler), Classes: []string{"tsugiki"}, Agent: kubetest.NewAgent()},
		client:  empty{}, ports: ports.New(nil), session: 1, known: map[types.NamespacedName][]*known{}, waiting: map[string]time.Time{},
	}
	take := func() error {
		_, err := n.ports.Of("u2", "bank").Take("", "x", v1alpha1.TCP, netip.Addr(testkit.HostAddr4), grant.Range{First: 443, Last: 443})
		return err
	}
	n.claim([]corev1.Pod{*pod})
	if take() == nil {
		t.Fatal("another pod has the port that a pod claims")
	}
	if _, err := n.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(pod)}); err != nil {
		t.Fatal(err)
	}
	if err := take(); err != nil {
		t.Error(err)
	}
}

// lateAgent is an agent whose first answer comes after an event that is newer.
type lateAgent struct {
	*kubetest.Agent
	register func()
	puts     int
}

func (a *lateAgent) PutGrant(string, api.Grant) (api.Granted, error) {
	if a.puts++; a.puts > 1 {
		return api.Granted{}, nil
	}
	a.register()
	return api.Granted{Restart: map[string][]string{"nginx": {"0.0.0.0:80/tcp=x"}}}, nil
}

// A container that is registered while the agent's answer is on its way needs no new one. The answer is about the
// container before, and the grant is put again.
func TestRegistersDuringPut(t *testing.T) {
	pod := podNamed("web", kubetest.NodeName, nil)
	pod.UID = "u1"
	agent := &lateAgent{}
	n := &Node{
		Options: Options{Log: slog.New(slog.DiscardHandler), Agent: agent}, events: events.NewFakeRecorder(4),
		wake: make(chan event.TypedGenericEvent[client.Object], 4), known: map[types.NamespacedName][]*known{}, waiting: map[string]time.Time{},
	}
	agent.register = func() {
		n.handle(t.Context(), api.PodEvent{Type: api.PodRegistered, Pod: api.Pod{Namespace: "shop", Name: "web", UID: "u1", Container: "nginx"}})
	}
	k := n.know(pod)
	for range 3 {
		if err := n.put(pod, k, 1, &api.Grant{Namespace: "shop", Name: "web"}); err != nil {
			t.Fatal(err)
		}
	}
	if agent.puts != 2 || len(k.restart) > 0 || len(n.wake) != 1 {
		t.Errorf("%d puts, the pod is woken %d times and needs %v", agent.puts, len(n.wake), k.restart)
	}
}
