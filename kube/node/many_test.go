package node

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/kube/kubetest"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// TestManyPods has a node with many pods follow the change of one policy and of one endpoint among
// many. It lists nothing for that. What it takes is shown, and no part of the test.
func TestManyPods(t *testing.T) {
	endpoints, pods := testkit.Times(40, 1000), testkit.Times(20, 300)
	w := newWorld(t)
	inParallel(endpoints, func(i int) error {
		return w.admin.Create(t.Context(), &v1alpha1.GraftEndpoint{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("e%d", i)},
			Spec: v1alpha1.GraftEndpointSpec{
				Type: v1alpha1.IPv4, Address: v1alpha1.AnyAddress, Destinations: []v1alpha1.Destination{{CIDR: "10.0.0.0/8"}},
				AllowedPods: []v1alpha1.PodSelection{{NamespaceSelector: v1alpha1.LabelSelector{MatchLabels: map[string]string{"team": "shop"}}}},
			},
		})
	}).fatal(t)
	w.start(time.Millisecond)
	made := make([]*corev1.Pod, pods)
	began := time.Now()
	inParallel(pods, func(i int) error {
		made[i] = podNamed(fmt.Sprintf("p%d", i), kubetest.NodeName, webLabels)
		return w.create(made[i])
	}).fatal(t)
	for _, p := range made {
		w.granted(p, given)
	}
	t.Logf("%d pods among %d endpoints: all granted after %v", pods, endpoints, time.Since(began))
	for _, p := range made { // the statuses and slices of all are written: all caches are complete
		w.condition(p, corev1.ConditionTrue, ReasonGranted, "")
	}
	w.available("web", pods, 0)
	before := w.lists()
	began = time.Now()
	policy := &v1alpha1.GraftPolicy{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop"}}
	patch := `{"spec": {"egress": [{"endpoint": "e7", "to": ["10.7.0.0/16"]}]}}`
	if err := w.admin.Patch(t.Context(), policy, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		t.Fatal(err)
	}
	for _, p := range made {
		w.granted(p, func(g api.Grant) error {
			if r := g.Containers["nginx"]; len(r.Egress) != 1 || !strings.HasPrefix(r.Egress[0], "10.7.0.0/16=") {
				return fmt.Errorf("grant %+v, want the new rule", g)
			}
			return nil
		})
	}
	converged := time.Since(began)
	puts := w.agent.Puts()
	if err := w.admin.Delete(t.Context(), &v1alpha1.GraftEndpoint{ObjectMeta: metav1.ObjectMeta{Name: "e8"}}); err != nil {
		t.Fatal(err)
	}
	if err := w.admin.Delete(t.Context(), &v1alpha1.GraftEndpoint{ObjectMeta: metav1.ObjectMeta{Name: "e7"}}); err != nil {
		t.Fatal(err)
	}
	for _, p := range made {
		w.granted(p, refused("there is no GraftEndpoint e7"))
	}
	if more := w.agent.Puts() - puts; more != pods {
		t.Errorf("an endpoint that %d pods use, and one that none does, were deleted: %d grants were put", pods, more)
	}
	if after := w.lists(); after != before {
		t.Errorf("the API server has answered %v lists of our resources meanwhile", after-before)
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	t.Logf("one policy changed: all grants put after %v; heap of the node and this test %d KiB", converged, m.HeapAlloc>>10)
}

// A grant waits for no write: the API server answers none until all pods have their grants.
func TestGrantsWaitForNoWrite(t *testing.T) {
	w := newWorld(t)
	open := make(chan struct{})
	w.config.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method != http.MethodGet {
				select {
				case <-open:
				case <-r.Context().Done():
				}
			}
			return next.RoundTrip(r)
		})
	}
	w.start(time.Millisecond)
	var made []*corev1.Pod
	for i := range 8 { // which are more than the node's workers
		made = append(made, w.pod(fmt.Sprintf("p%d", i), kubetest.NodeName, webLabels))
	}
	for _, p := range made {
		w.granted(p, given)
	}
	close(open)
	for _, p := range made {
		w.condition(p, corev1.ConditionTrue, ReasonGranted, "")
	}
	w.available("web", len(made), 0)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// lists is how many lists of resources that a node watches the API server has answered.
func (w *world) lists() float64 {
	w.t.Helper()
	m, err := w.Metrics()
	if err != nil {
		w.t.Fatal(err)
	}
	sum := m.Lists("graftendpoints") + m.Lists("graftpolicies")
	if sum == 0 {
		w.t.Fatal("the API server counts no lists of our resources")
	}
	return sum
}

// failures are the errors of functions that ran at once.
type failures []error

func (f failures) fatal(t *testing.T) {
	t.Helper()
	for _, err := range f {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// inParallel calls a function with each number below n, some at a time.
func inParallel(n int, do func(i int) error) failures {
	list := make(failures, n)
	var all sync.WaitGroup
	turns := make(chan struct{}, 16)
	for i := range n {
		all.Add(1)
		go func() {
			defer all.Done()
			turns <- struct{}{}
			list[i] = do(i)
			<-turns
		}()
	}
	all.Wait()
	return list
}
