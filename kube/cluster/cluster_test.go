package cluster

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/go-logr/logr"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/kube/caches"
	"github.com/tsugiki/tsugiki/kube/kubetest"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

const resources = kubetest.Shop + `
apiVersion: tsugiki.dev/v1alpha1
kind: GraftPolicy
metadata: {name: web, namespace: shop}
spec: {podSelector: {}, ingress: [{endpoint: web, port: 80}], egress: [{endpoint: out, to: [10.0.0.0/8]}]}
`

// start starts the controllers at an API server of the test's own, with the permissions of deploy/.
func start(t *testing.T) (s *kubetest.APIServer, admin client.Client) {
	t.Helper()
	s = kubetest.Serve(t)
	admin = s.Deploy()
	skip := true
	m, err := ctrl.NewManager(s.Config(kubetest.Token(t, admin, "tsugiki-kube-cluster", "")), ctrl.Options{
		Scheme: admin.Scheme(), Cache: CacheOptions(), MapperProvider: caches.Mapper, Metrics: server.Options{BindAddress: "0"}, Logger: logr.Discard(),
		Controller: config.Controller{SkipNameValidation: &skip},
	})
	if err == nil {
		err = Add(m)
	}
	if err != nil {
		t.Fatal(err)
	}
	kubetest.StartManager(t, m)
	return s, admin
}

func TestStatus(t *testing.T) {
	_, admin := start(t)
	kubetest.Create(t, admin, resources)
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
