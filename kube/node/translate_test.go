package node

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/kube/kubetest"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

const translated = `
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: tsugiki-translate}
handler: tsugiki-translate
---
apiVersion: tsugiki.dev/v1alpha1
kind: GraftEndpoint
metadata: {name: six}
spec: {type: IPv6, destinations: [{cidr: "2001:db8:7::/48"}], resolvers: ["[2001:db8:7::53]:53"], allowedPods: [{namespaceSelector: {matchLabels: {team: shop}}}]}
---
apiVersion: tsugiki.dev/v1alpha1
kind: GraftPolicy
metadata: {name: four, namespace: shop}
spec: {podSelector: {matchLabels: {app: four}}, translate: {endpoint: six}}
`

// testTranslated has pods with the other RuntimeClass: one whose IPv4 is translated as the resources say,
// while they say so, and one with a second container.
func testTranslated(t *testing.T, w *world) {
	kubetest.Create(t, w.admin, translated)
	class := "tsugiki-translate"
	made := func(name string, more ...corev1.Container) *corev1.Pod {
		p := podNamed(name, kubetest.NodeName, map[string]string{"app": "four"})
		p.Spec.RuntimeClassName, p.Spec.Containers = &class, append(p.Spec.Containers, more...)
		if err := w.create(p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	asks := func(resolver string) func(api.Grant) error {
		return func(g api.Grant) error {
			r := g.Containers["nginx"]
			if g.Refused != "" || r.Translate == nil || len(r.Translate.DNS) != 1 || r.Translate.DNS[0] != resolver || len(r.Egress) != 1 || !strings.HasPrefix(r.Egress[0], "2001:db8:7::/48=") {
				return fmt.Errorf("grant %+v, want translation with the resolver %s", g, resolver)
			}
			return nil
		}
	}
	p := made("four")
	w.granted(p, asks("[2001:db8:7::53]:53"))
	w.condition(p, corev1.ConditionTrue, ReasonGranted, "")
	e := &v1alpha1.GraftEndpoint{ObjectMeta: metav1.ObjectMeta{Name: "six"}}
	patch := func(text string) {
		t.Helper()
		if err := w.admin.Patch(t.Context(), e, client.RawPatch(types.MergePatchType, []byte(text))); err != nil {
			t.Fatal(err)
		}
	}
	patch(`{"spec": {"resolvers": ["198.51.100.53:53"]}}`)
	w.granted(p, asks("198.51.100.53:53"))
	patch(`{"spec": {"destinations": null}}`)
	w.granted(p, refused("GraftEndpoint six has no destinations"))
	patch(`{"spec": {"destinations": [{"cidr": "2001:db8:7::/48"}]}}`)
	w.granted(p, asks("198.51.100.53:53"))
	testkit.Eventually(t, func() error {
		var policy v1alpha1.GraftPolicy
		err := w.admin.Get(t.Context(), types.NamespacedName{Namespace: "shop", Name: "four"}, &policy)
		if err == nil && (policy.Status.Endpoints != "six" || len(policy.Status.Conditions) != 1 || policy.Status.Conditions[0].Status != metav1.ConditionTrue) {
			err = fmt.Errorf("the policy's status is %+v", policy.Status)
		}
		return err
	})

	two := made("two", corev1.Container{Name: "sidecar", Image: "nginx"})
	container := api.Pod{Namespace: "shop", Name: two.Name, UID: string(two.UID), Container: "nginx"}
	w.agent.Register(container) // it waits
	const why = "IPv4 is translated for the only container of a pod, and this one has 2: nginx, sidecar"
	w.granted(two, refused(why))
	w.agent.Register(container)
	w.event(two, ReasonRefused, why)
	w.delete(two)
	w.gone(two)
	w.delete(p)
	w.gone(p)
}
