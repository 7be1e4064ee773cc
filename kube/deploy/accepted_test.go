package deploy

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/kube/kubetest"
)

// everything turns on what is off by default.
const everything = `image: "example.org/kube:1", imagePullPolicy: Always, imagePullSecrets: [{name: a}], translate: {enabled: true}, nri: {enabled: true},
	metrics: {agent: "0.0.0.0:9469", node: "0.0.0.0:9471", cluster: "0.0.0.0:9472"}, node: {nodeSelector: {a: b}}, cluster: {nodeSelector: {a: b}, tolerations: [{operator: Exists}]}`

// The API server takes all objects of the chart, and knows each of their fields.
func TestChartIsAccepted(t *testing.T) {
	s := kubetest.Serve(t)
	c := kubetest.Client(t, s.Config("admin"))
	kubetest.CreateFiles(t, c, []string{"RuntimeClass"}, "manifests/namespace.yaml")
	for _, values := range []string{`{}`, `{` + everything + `}`, `{` + everything + `, uninstall: true}`, `{agent: {install: false}, metrics: {node: "[::]:9471"}}`} {
		list := kubetest.Chart(t, "tsugiki", values)
		if len(list) < 10 {
			t.Fatalf("%s: %d objects", values, len(list))
		}
		for _, o := range list {
			testkit.Eventually(t, func() error { // the namespace's service account, or its default policies, may not be there yet
				return c.Create(t.Context(), o.DeepCopy(), client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict))
			})
		}
	}
}
