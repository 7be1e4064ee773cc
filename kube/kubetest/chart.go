package kubetest

import (
	"path/filepath"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Chart has helm make the objects of the chart in deploy/, for a namespace, which is not among them.
// Values are YAML.
func Chart(t testkit.TB, namespace, values string) (list []*unstructured.Unstructured) {
	t.Helper()
	c, err := loader.Load(filepath.Join(Root(t), "deploy", "helm", "tsugiki"))
	if err != nil {
		t.Fatalf("%v", err)
	}
	if err := c.Validate(); err != nil {
		t.Fatalf("%v", err)
	}
	given, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		t.Fatalf("%v", err)
	}
	all, err := chartutil.ToRenderValues(c, given, chartutil.ReleaseOptions{Name: "tsugiki", Namespace: namespace}, nil)
	if err != nil {
		t.Fatalf("%v", err)
	}
	files, err := engine.Render(c, all)
	if err != nil {
		t.Fatalf("%v", err)
	}
	for _, crd := range c.CRDObjects() {
		list = append(list, Parse(t, crd.File.Data)...)
	}
	var names []string
	for name := range files {
		if strings.HasSuffix(name, ".yaml") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		list = append(list, Parse(t, []byte(files[name]))...)
	}
	return list
}
