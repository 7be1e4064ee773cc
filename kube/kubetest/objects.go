package kubetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// Client makes a client of Kubernetes' and our resources.
func Client(t testkit.TB, c *rest.Config) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatalf("%v", err)
	}
	made, err := client.New(c, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatalf("%v", err)
	}
	return made
}

// Parse reads objects of a text of YAML documents.
func Parse(t testkit.TB, text []byte) (list []*unstructured.Unstructured) {
	t.Helper()
	for d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		o := &unstructured.Unstructured{}
		err := d.Decode(&o.Object)
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if len(o.Object) > 0 {
			list = append(list, o)
		}
	}
}

// Create makes the objects of a text.
func Create(t testkit.TB, c client.Client, text string) {
	t.Helper()
	for _, o := range Parse(t, []byte(text)) {
		if err := c.Create(context.Background(), o); err != nil {
			t.Fatalf("create %s %s: %v", o.GetKind(), o.GetName(), err)
		}
	}
}

// CreateFiles makes the objects of files of deploy/, in the order of their patterns. Kinds that are
// among others are left out.
func CreateFiles(t testkit.TB, c client.Client, without []string, patterns ...string) {
	t.Helper()
	for _, p := range patterns {
		files, err := filepath.Glob(filepath.Join(Root(t), "deploy", p))
		if err != nil || len(files) == 0 {
			t.Fatalf("no file is deploy/%s: %v", p, err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatalf("%v", err)
			}
			for _, o := range Parse(t, text) {
				if slices.Contains(without, o.GetKind()) {
					continue
				}
				// A kind that was just defined, or a namespace, may not be known yet.
				testkit.Eventually(t, func() error { return c.Create(context.Background(), o.DeepCopy()) })
			}
		}
	}
}
