package node

import (
	"log/slog"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/tsugiki/tsugiki/api"
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
