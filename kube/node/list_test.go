package node

import (
	"net/http"
	"path"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tsugiki/tsugiki/kube/kubetest"
)

// All nodes may start at once: their lists are of the API server's cache, and not of etcd.
func TestListsOfTheCache(t *testing.T) {
	w := newWorld(t)
	var mu sync.Mutex // guards what follows
	versions := map[string][]string{}
	w.config.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			q := r.URL.Query()
			resource := path.Base(r.URL.Path)
			resp, err := next.RoundTrip(r)
			switch {
			case err != nil || resp.StatusCode != http.StatusOK: // also of watches that begin with a list, which not each API server has
			case q.Get("sendInitialEvents") == "true":
				mu.Lock()
				versions[resource] = append(versions[resource], "0")
				mu.Unlock()
			case r.Method == http.MethodGet && q.Get("watch") == "":
				mu.Lock()
				versions[resource] = append(versions[resource], q.Get("resourceVersion"))
				mu.Unlock()
			}
			return resp, err
		})
	}
	w.start(time.Millisecond)
	p := w.pod("p", kubetest.NodeName, webLabels)
	w.condition(p, corev1.ConditionTrue, ReasonGranted, "")
	mu.Lock()
	defer mu.Unlock()
	for _, resource := range []string{"pods", "namespaces", "graftpolicies", "graftendpoints"} {
		list := versions[resource]
		if len(list) == 0 {
			t.Errorf("%s were not listed", resource)
		}
		for _, v := range list {
			if v != "0" {
				t.Errorf("%s were listed at version %q", resource, v)
			}
		}
	}
}
