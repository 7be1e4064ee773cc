package caches

import (
	"encoding/json"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// Of a policy that is too large, a cache keeps little, also when the policy is stripped twice.
func TestStripOfLargePolicy(t *testing.T) {
	p := &v1alpha1.GraftPolicy{ObjectMeta: metav1.ObjectMeta{Name: "large", Namespace: "shop", Generation: 7}}
	r := v1alpha1.IngressRule{Endpoint: "web", Port: 80}
	for range 4000 {
		r.From = append(r.From, v1alpha1.Peer{IPBlock: &v1alpha1.IPBlock{CIDR: "10.0.0.0/8"}})
	}
	p.Spec.Ingress = []v1alpha1.IngressRule{r}
	for range 2 {
		if kept, err := Strip(p); err != nil || kept != p {
			t.Fatalf("%v, %v", kept, err)
		}
	}
	if text, err := json.Marshal(p); err != nil || len(text) > 1000 || p.TooLarge < 100_000 || p.Name != "large" || p.Generation != 7 {
		t.Errorf("%d bytes, too large: %d, %v", len(text), p.TooLarge, err)
	}
}
