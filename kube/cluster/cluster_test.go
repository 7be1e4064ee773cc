package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/go-logr/logr"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/kube/kubetest"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

const resources = `
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {team: shop}}
---
apiVersion: tsugiki.dev/v1alpha1
kind: GraftPolicy
metadata: {name: web, namespace: shop}
spec: {podSelector: {}, ingress: [{endpoint: web, port: 80}], egress: [{endpoint: out, to: [10.0.0.0/8]}]}
---
apiVersion: tsugiki.dev/v1alpha1
kind: GraftEndpoint
metadata: {name: web}
spec: {type: IPv4, ports: "80", allowedPods: [{namespaceSelector: {matchLabels: {team: shop}}}]}
`

// TestStatus has the permissions of deploy/, without leader election.
func TestStatus(t *testing.T) {
	net, err := testkit.New(t.Context(), testkit.Options{})
	var needs *testkit.NeedsError
	if errors.As(err, &needs) {
		t.Skipf("skip: needs %s", needs.What)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := net.Close(); err != nil {
			t.Error(err)
		}
	})
	s := kubetest.StartAPIServer(t, net.Host, net.Host)
	admin := kubetest.Client(t, s.Config("admin"))
	kubetest.CreateFiles(t, admin, nil, "crds/*.yaml", "manifests/namespace.yaml", "manifests/rbac.yaml")
	testkit.Eventually(t, func() error { return admin.List(t.Context(), &v1alpha1.GraftPolicyList{}) })
	kubetest.Create(t, admin, resources)
	token, err := kubetest.ClusterToken(t.Context(), admin)
	if err != nil {
		t.Fatal(err)
	}
	m, err := ctrl.NewManager(s.Config(token), ctrl.Options{Scheme: admin.Scheme(), Metrics: server.Options{BindAddress: "0"}, Logger: logr.Discard()})
	if err == nil {
		err = Add(m)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- m.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	policy := types.NamespacedName{Namespace: "shop", Name: "web"}
	accepted(t, admin, policy, metav1.ConditionFalse, "egress 0: there is no GraftEndpoint out")
	kubetest.Create(t, admin, `{apiVersion: tsugiki.dev/v1alpha1, kind: GraftEndpoint, metadata: {name: out}, spec: {type: IPv4, destinations: [{cidr: 10.0.0.0/9}],
		allowedPods: [{namespaceSelector: {}}]}}`)
	accepted(t, admin, policy, metav1.ConditionFalse, "10.0.0.0/8, ports 1-65535, is no destination of GraftEndpoint out")
	patch := func(o client.Object, text string) {
		t.Helper()
		if err := admin.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(text))); err != nil {
			t.Fatal(err)
		}
	}
	patch(&v1alpha1.GraftEndpoint{ObjectMeta: metav1.ObjectMeta{Name: "out"}}, `{"spec": {"destinations": [{"cidr": "10.0.0.0/8"}]}}`)
	accepted(t, admin, policy, metav1.ConditionTrue, "")
	patch(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, `{"metadata": {"labels": {"team": "bank"}}}`)
	accepted(t, admin, policy, metav1.ConditionFalse, "GraftEndpoint web is not for pods of namespace shop")
	counted(t, admin, "web", 1)
	counted(t, admin, "out", 1)
	patch(&v1alpha1.GraftPolicy{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop"}}, `{"spec": {"egress": null}}`)
	counted(t, admin, "out", 0)
	if err := admin.Delete(t.Context(), &v1alpha1.GraftPolicy{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop"}}); err != nil {
		t.Fatal(err)
	}
	counted(t, admin, "web", 0)
}

// accepted waits for the condition of a policy.
func accepted(t *testing.T, c client.Client, key types.NamespacedName, status metav1.ConditionStatus, message string) {
	t.Helper()
	testkit.Eventually(t, func() error {
		var p v1alpha1.GraftPolicy
		if err := c.Get(t.Context(), key, &p); err != nil {
			return err
		}
		has := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionAccepted)
		if has == nil || has.Status != status || !strings.Contains(has.Message, message) || has.ObservedGeneration != p.Generation {
			return fmt.Errorf("condition %+v, want %s %q", has, status, message)
		}
		return nil
	})
}

// counted waits until an endpoint is accepted and counts so many policies.
func counted(t *testing.T, c client.Client, name string, policies int32) {
	t.Helper()
	testkit.Eventually(t, func() error {
		var e v1alpha1.GraftEndpoint
		if err := c.Get(t.Context(), types.NamespacedName{Name: name}, &e); err != nil {
			return err
		}
		if e.Status.Policies != policies || !meta.IsStatusConditionTrue(e.Status.Conditions, v1alpha1.ConditionAccepted) {
			return fmt.Errorf("status %+v, want %d policies", e.Status, policies)
		}
		return nil
	})
}
