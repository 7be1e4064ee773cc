package cluster

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
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
spec: {podSelector: {}, ingress: [{endpoint: web, port: 80}, {endpoint: web, port: 443}], egress: [{endpoint: out, to: [10.0.0.0/8]}]}
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
	s, admin := start(t)
	kubetest.Create(t, admin, resources)
	policy := types.NamespacedName{Namespace: "shop", Name: "web"}
	accepted(t, admin, policy, metav1.ConditionFalse, "egress 0: there is no GraftEndpoint out")
	shown(t, s, "namespaces/shop/graftpolicies", `["web","80,443","10.0.0.0/8",null,null,null,"out,web","False","egress 0: there is no GraftEndpoint out`)
	shown(t, s, "graftendpoints", `["web","IPv4","Node","31000-31999","True","it can be put in force",true,null,`)
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
	used(t, admin, "web", true)
	used(t, admin, "out", true)
	patch(&v1alpha1.GraftPolicy{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop"}}, `{"spec": {"egress": null}}`)
	used(t, admin, "out", false)
	if err := admin.Delete(t.Context(), &v1alpha1.GraftPolicy{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop"}}); err != nil {
		t.Fatal(err)
	}
	used(t, admin, "web", false)
}

// All nodes watch all endpoints: a second policy that names one changes nothing of it.
func TestStatusOfManyPolicies(t *testing.T) {
	_, admin := start(t)
	kubetest.Create(t, admin, kubetest.Shop)
	policy := func(name, endpoint string) {
		kubetest.Create(t, admin, fmt.Sprintf(`{apiVersion: tsugiki.dev/v1alpha1, kind: GraftPolicy, metadata: {name: %s, namespace: shop},
			spec: {podSelector: {}, ingress: [{endpoint: web, port: 80}, {endpoint: %s, port: 81}]}}`, name, endpoint))
	}
	policy("first", "web")
	before := used(t, admin, "web", true)
	kubetest.Create(t, admin, `{apiVersion: tsugiki.dev/v1alpha1, kind: GraftEndpoint, metadata: {name: zweb}, spec: {type: IPv4, ports: "80"}}`)
	policy("second", "zweb") // of whose endpoints web is looked at first
	used(t, admin, "zweb", true)
	if now := used(t, admin, "web", true); now != before {
		t.Errorf("the endpoint was written: its version is %s, and was %s", now, before)
	}
}

// shown waits until the columns of the first resource of a list begin with some values.
func shown(t *testing.T, s *kubetest.APIServer, resources, want string) {
	t.Helper()
	c, err := rest.HTTPClientFor(s.Config("admin"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseIdleConnections()
	testkit.Eventually(t, func() error {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.Config("").Host+"/apis/tsugiki.dev/v1alpha1/"+resources, nil)
		if err != nil {
			return err
		}
		r.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
		resp, err := c.Do(r)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		var table struct {
			Rows []struct{ Cells json.RawMessage }
		}
		if err := json.NewDecoder(resp.Body).Decode(&table); err != nil {
			return err
		}
		if len(table.Rows) == 0 || !strings.HasPrefix(string(table.Rows[0].Cells), want) {
			return fmt.Errorf("the columns of %s are %s, want %s", resources, table.Rows, want)
		}
		return nil
	})
}

// kubectl get shows what a policy is about.
func TestColumns(t *testing.T) {
	for _, tt := range []struct {
		spec            v1alpha1.GraftPolicySpec
		ingress, egress string
	}{
		{v1alpha1.GraftPolicySpec{}, "", ""},
		{
			v1alpha1.GraftPolicySpec{
				Ingress: []v1alpha1.IngressRule{{Port: 80, Protocol: v1alpha1.TCP}, {Port: 53, Protocol: v1alpha1.UDP}},
				Egress:  []v1alpha1.EgressRule{{To: []string{"10.0.0.0/8", "::/0"}}, {To: []string{"10.0.0.0/8"}}},
			},
			"80,53/UDP", "10.0.0.0/8,::/0",
		},
		{
			v1alpha1.GraftPolicySpec{Egress: []v1alpha1.EgressRule{{To: []string{"10.0.0.0/8", "10.0.0.0/9", "10.0.0.0/10"}}, {To: []string{"10.0.0.0/11", "10.0.0.0/12"}}}},
			"", "10.0.0.0/8,10.0.0.0/9,10.0.0.0/10,and 2 more",
		},
	} {
		if ingress, egress := columns(&tt.spec); ingress != tt.ingress || egress != tt.egress {
			t.Errorf("%+v: %q and %q, want %q and %q", tt.spec, ingress, egress, tt.ingress, tt.egress)
		}
	}
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

// used waits until an endpoint is accepted and used, or not, and returns its version.
func used(t *testing.T, c client.Client, name string, want bool) string {
	t.Helper()
	var e v1alpha1.GraftEndpoint
	testkit.Eventually(t, func() error {
		if err := c.Get(t.Context(), types.NamespacedName{Name: name}, &e); err != nil {
			return err
		}
		if e.Status.Used != want || !meta.IsStatusConditionTrue(e.Status.Conditions, v1alpha1.ConditionAccepted) {
			return fmt.Errorf("status %+v of %s, want used: %t", e.Status, name, want)
		}
		return nil
	})
	return e.ResourceVersion
}
