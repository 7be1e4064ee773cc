package node

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/kube/kubetest"
)

const cachePolicy = `
apiVersion: tsugiki.dev/v1alpha1
kind: GraftPolicy
metadata: {name: cache, namespace: shop}
spec:
  podSelector: {matchLabels: {app: cache}}
  ingress: [{endpoint: web, port: 80, from: [{podSelector: {matchLabels: {app: client}}}, {ipBlock: {cidr: 203.0.113.0/24}}]}]
`

// testPeers has pods come, change their labels, get addresses and go, of which a rule selects some.
func testPeers(t *testing.T, w *world) {
	kubetest.Create(t, w.admin, cachePolicy)
	server := w.pod("cache", kubetest.NodeName, map[string]string{"app": "cache"})
	labels := map[string]string{"app": "client"}
	w.pod("far", "n2", labels)
	w.admits(server, "203.0.113.0/24")

	a := w.pod("a-client", kubetest.NodeName, labels)
	w.admits(server, "pod:"+string(a.UID), "203.0.113.0/24")
	w.patch(a, true, map[string]any{"status": map[string]any{"podIPs": []map[string]string{{"ip": "10.244.0.7"}}}})
	w.admits(server, "pod:"+string(a.UID), "203.0.113.0/24", "10.244.0.7/32")
	plain := podNamed("plain", kubetest.NodeName, labels)
	plain.Spec.RuntimeClassName = nil
	if err := w.admin.Create(t.Context(), plain); err != nil {
		t.Fatal(err)
	}
	w.patch(plain, true, map[string]any{"status": map[string]any{"podIPs": []map[string]string{{"ip": "10.244.0.8"}}}})
	w.admits(server, "pod:"+string(a.UID), "203.0.113.0/24", "10.244.0.7/32", "10.244.0.8/32")
	w.patch(plain, false, map[string]any{"metadata": map[string]any{"labels": map[string]string{"app": "other"}}})
	w.admits(server, "pod:"+string(a.UID), "203.0.113.0/24", "10.244.0.7/32")
	w.delete(a)
	w.admits(server, "203.0.113.0/24")
	w.delete(plain)
	w.delete(server)
	w.gone(server)
}

// patch changes a pod, or its status.
func (w *world) patch(p *corev1.Pod, status bool, change map[string]any) {
	w.t.Helper()
	patch, err := json.Marshal(change)
	if err == nil && status {
		err = w.admin.Status().Patch(w.t.Context(), p.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, patch))
	} else if err == nil {
		err = w.admin.Patch(w.t.Context(), p.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, patch))
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// admits waits until the rule of a pod has some sources, beside the pod itself.
func (w *world) admits(p *corev1.Pod, sources ...string) {
	w.t.Helper()
	want := "+from:" + strings.Join(append([]string{"pod:" + string(p.UID)}, sources...), "+from:") + "="
	w.granted(p, func(g api.Grant) error {
		if r := g.Containers["nginx"].Ingress; len(r) != 1 || !strings.Contains(r[0], want) {
			return fmt.Errorf("rules %v, want %s; refused: %q", r, want, g.Refused)
		}
		return nil
	})
}

// lists is a client that counts lists, and calls during while it makes one.
type lists struct {
	client.Client
	made   int
	during func()
}

func (l *lists) List(context.Context, client.ObjectList, ...client.ListOption) error {
	l.made++
	if l.during != nil {
		l.during()
	}
	return nil
}

// The pods of the node are listed once for all decisions after a change.
func TestPeersAreKept(t *testing.T) {
	l := &lists{}
	n := &Node{client: l}
	change := func() { n.podsWithPeers(t.Context(), nil) }
	ask := func(want int) {
		t.Helper()
		if _, err := n.peers(t.Context()); err != nil || l.made != want {
			t.Errorf("%d lists, want %d; %v", l.made, want, err)
		}
	}
	ask(2) // of namespaces and pods
	ask(2)
	change()
	ask(4)
	ask(4)
	change()
	l.during = change
	ask(6)
	l.during = nil
	ask(8) // those before may be older than the change
	ask(8)
}
