package kubetest

import (
	"context"
	"testing"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// Shop is a namespace, and an endpoint for servers of its pods.
const Shop = `
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {team: shop}}
---
apiVersion: tsugiki.dev/v1alpha1
kind: GraftEndpoint
metadata: {name: web}
spec: {type: IPv4, ports: 31000-31999, allowedPods: [{namespaceSelector: {matchLabels: {team: shop}}}]}
---
`

// Serve starts an API server alone, on the host of a topology of its own, with some more arguments.
func Serve(t testing.TB, args ...string) *APIServer {
	t.Helper()
	net := testkit.Build(t, testkit.Options{})
	return StartAPIServer(t, net.Host, net.Host, args...)
}

// Deploy makes all objects of deploy/ but the workloads, and returns a client of the administrator.
func (a *APIServer) Deploy() client.Client {
	a.t.Helper()
	admin := Client(a.t, a.Config("admin"))
	CreateFiles(a.t, admin, []string{"DaemonSet", "Deployment"}, "crds/*.yaml", "manifests/namespace.yaml", "manifests/rbac.yaml", "manifests/admission.yaml", "manifests/flow.yaml")
	testkit.Eventually(a.t, func() error { return admin.List(context.Background(), &v1alpha1.GraftPolicyList{}) })
	return admin
}

// Token is MakeToken for a test.
func Token(t testing.TB, admin client.Client, account, node string) string {
	t.Helper()
	token, err := MakeToken(t.Context(), admin, account, node)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// StartManager starts a manager, and returns a function that ends it. The end of the test does, too.
func StartManager(t testing.TB, m ctrl.Manager) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- m.Start(ctx)
		close(ended)
	}()
	stop = func() {
		cancel()
		if err, first := <-ended; first && err != nil {
			t.Errorf("the manager: %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}
