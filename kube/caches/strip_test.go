package caches

import (
	"encoding/json"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
	label(p)
	for range 2 {
		if kept, err := Strip(p); err != nil || kept != p {
			t.Fatalf("%v, %v", kept, err)
		}
	}
	if text, err := json.Marshal(p); err != nil || len(text) > 1000 || p.TooLarge < 100_000 || p.Name != "large" || p.Generation != 7 {
		t.Errorf("%d bytes, too large: %d, %v", len(text), p.TooLarge, err)
	}
}

// The limit of a policy's specification does not count labels and finalizers, and endpoints have no limit.
func TestStripOfLabels(t *testing.T) {
	for _, o := range []client.Object{&v1alpha1.GraftPolicy{}, &v1alpha1.GraftEndpoint{}} {
		label(o)
		kept, err := Strip(o)
		if err != nil || kept != o || len(o.GetLabels())+len(o.GetFinalizers()) > 0 {
			t.Errorf("%T: %d labels, %d finalizers, %v", o, len(o.GetLabels()), len(o.GetFinalizers()), err)
		}
	}
	n := Namespace()
	label(n)
	if _, err := Strip(n); err != nil || len(n.Labels) != 10_000 {
		t.Errorf("a namespace has %d labels, %v", len(n.Labels), err)
	}
}

// label gives an object many labels, and finalizers.
func label(o client.Object) {
	labels := map[string]string{}
	for i := range 10_000 {
		labels[fmt.Sprint("example.com/", i)] = "x"
	}
	o.SetLabels(labels)
	o.SetFinalizers([]string{"example.com/x", "example.com/y"})
}
