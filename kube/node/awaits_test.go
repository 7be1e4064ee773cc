package node

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/kube/kubetest"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// A pod that runs gets a policy before the endpoint that the policy names.
func testAwaits(t *testing.T, w *world) {
	w.stop()
	w.start(time.Hour)
	kubetest.Create(t, w.admin, `{apiVersion: tsugiki.dev/v1alpha1, kind: GraftPolicy, metadata: {name: late, namespace: shop},
		spec: {podSelector: {matchLabels: {app: late}}, egress: [{endpoint: out, to: [10.3.0.0/16]}]}}`)
	p := w.pod("late", kubetest.NodeName, map[string]string{"app": "late"})
	w.granted(p, destinations(1))
	w.register(p)
	policy := &v1alpha1.GraftPolicy{ObjectMeta: metav1.ObjectMeta{Name: "late", Namespace: "shop"}}
	name := func(endpoint string) {
		t.Helper()
		patch := fmt.Sprintf(`{"spec": {"egress": [{"endpoint": "out", "to": ["10.3.0.0/16", "10.4.0.0/16"]}, {"endpoint": %q, "to": ["10.5.0.0/16"]}]}}`, endpoint)
		if err := w.admin.Patch(t.Context(), policy, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
			t.Fatal(err)
		}
	}
	name("late")
	w.granted(p, destinations(2))
	kubetest.Create(t, w.admin, `{apiVersion: tsugiki.dev/v1alpha1, kind: GraftEndpoint, metadata: {name: late},
		spec: {type: IPv4, address: Any, destinations: [{cidr: 10.0.0.0/8}], allowedPods: [{namespaceSelector: {}}]}}`)
	w.granted(p, destinations(3))
	w.condition(p, "True", ReasonGranted, "")
	w.delete(&v1alpha1.GraftEndpoint{ObjectMeta: metav1.ObjectMeta{Name: "late"}})
	w.granted(p, refused("there is no GraftEndpoint late")) // at once
	w.stop()
	w.start(time.Millisecond)
	name("never")
	w.granted(p, refused("there is no GraftEndpoint never"))
	w.condition(p, "False", ReasonRefused, "there is no GraftEndpoint never")
	w.stop() // who has nothing awaits nothing, also of the next tsugiki-kube
	puts := make(chan api.Grant, 100)
	w.agent.Refuse(func(g api.Grant) error {
		if g.Name == "late" {
			puts <- g
		}
		return nil
	})
	w.start(time.Hour)
	if g := <-puts; g.Refused == "" {
		t.Errorf("first, the pod that was refused is given %+v", g)
	}
	w.agent.Refuse(nil)
	w.stop()
	w.start(time.Millisecond)
	w.delete(policy)
	w.delete(p)
	w.gone(p)
}

func destinations(n int) func(api.Grant) error {
	return func(g api.Grant) error {
		if r := g.Containers["nginx"]; g.Refused != "" || len(r.Egress) != n {
			return fmt.Errorf("grant %+v, want %d rules", g, n)
		}
		return nil
	}
}
