package kubetest

import (
	"context"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// accounts is the namespace of our service accounts.
const accounts = "tsugiki"

// Deploy makes all objects of deploy/ but the workloads, and returns a client of the administrator.
func (a *APIServer) Deploy() client.Client {
	a.t.Helper()
	admin := Client(a.t, a.Config("admin"))
	CreateFiles(a.t, admin, []string{"DaemonSet", "Deployment"}, "crds/*.yaml", "manifests/namespace.yaml", "manifests/rbac.yaml", "manifests/admission.yaml")
	testkit.Eventually(a.t, func() error { return admin.List(context.Background(), &v1alpha1.GraftPolicyList{}) })
	return admin
}

// Token returns a token of a service account of ours. With a node, it is bound to a pod on that node,
// as a pod of a DaemonSet has it.
func Token(t testing.TB, admin client.Client, account, node string) string {
	t.Helper()
	r := &authenticationv1.TokenRequest{}
	if node != "" {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: account + "-" + node, Namespace: accounts},
			Spec: corev1.PodSpec{
				ServiceAccountName: account, NodeName: node, AutomountServiceAccountToken: new(bool),
				Containers: []corev1.Container{{Name: "c", Image: "i"}},
			},
		}
		if err := admin.Create(context.Background(), pod); err != nil {
			t.Fatal(err)
		}
		r.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}
	}
	of := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account, Namespace: accounts}}
	if err := admin.SubResource("token").Create(context.Background(), of, r); err != nil {
		t.Fatal(err)
	}
	return r.Status.Token
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
