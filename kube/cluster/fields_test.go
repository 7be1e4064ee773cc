package cluster

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/kube/kubetest"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// A definition without from, as an older one, takes it away from a policy that is written. The process of
// the cluster is not ready then.
func TestFieldsThatTheClusterLacks(t *testing.T) {
	s := kubetest.Serve(t)
	d, err := discovery.NewDiscoveryClientForConfig(s.Config(kubetest.Token(t, s.Deploy(), "tsugiki-kube-cluster", "")))
	if err != nil {
		t.Fatal(err)
	}
	admin := kubetest.Client(t, s.Config("admin"))
	is := func(want string) {
		t.Helper()
		testkit.Eventually(t, func() error {
			f := &Fields{server: d.RESTClient(), log: slog.New(slog.DiscardHandler)}
			err := f.Check(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/readyz", nil))
			if want == "" {
				return err
			}
			if err == nil || !strings.Contains(err.Error(), want) {
				return fmt.Errorf("%w, want %q", err, want)
			}
			return nil
		})
	}
	is("")

	definition := &unstructured.Unstructured{}
	definition.SetAPIVersion("apiextensions.k8s.io/v1")
	definition.SetKind("CustomResourceDefinition")
	definition.SetName("graftpolicies.tsugiki.dev")
	const at = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/"
	older := `[{"op": "remove", "path": "` + at + `ingress/items/properties/from"}, {"op": "remove", "path": "` + at + `egress/items/properties/containers"}]`
	if err := admin.Patch(t.Context(), definition, client.RawPatch(types.JSONPatchType, []byte(older))); err != nil {
		t.Fatal(err)
	}
	is("drops these fields: GraftPolicy.spec.ingress[].from, GraftPolicy.spec.egress[].containers; kubectl apply")
	p := kubetest.Parse(t, []byte(`{apiVersion: tsugiki.dev/v1alpha1, kind: GraftPolicy, metadata: {name: web, namespace: default},
		spec: {podSelector: {}, ingress: [{endpoint: web, port: 80, from: [{podSelector: {}}]}]}}`))[0]
	if err := admin.Create(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	var stored v1alpha1.GraftPolicy
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(p), &stored); err != nil {
		t.Fatal(err)
	}
	if len(stored.Spec.Ingress) != 1 || stored.Spec.Ingress[0].From != nil {
		t.Errorf("the rule is %+v: nothing was dropped, and the check has no reason", stored.Spec.Ingress)
	}
	for _, name := range []string{"graftpolicies.tsugiki.dev", "graftendpoints.tsugiki.dev"} {
		definition.SetName(name)
		if err := admin.Delete(t.Context(), definition); err != nil {
			t.Fatal(err)
		}
	}
	is("the cluster has no GraftEndpoints and GraftPolicies")
}
