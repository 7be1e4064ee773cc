package kubetest

import (
	"fmt"
	"maps"
	"path"
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
	files, err := Render(t, namespace, values)
	if err != nil {
		t.Fatalf("%v", err)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, ".yaml") {
			list = append(list, Parse(t, []byte(files[name]))...)
		}
	}
	return list
}

// Render has helm make the files of the chart in deploy/, or say why it does not.
func Render(t testkit.TB, namespace, values string) (files map[string]string, err error) {
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
		return nil, fmt.Errorf("values of the chart: %w", err)
	}
	rendered, err := engine.Render(c, all)
	if err != nil {
		return nil, err
	}
	files = map[string]string{}
	for _, crd := range c.CRDObjects() { // before all others, by their names
		files["0-crds/"+path.Base(crd.Filename)] = string(crd.File.Data)
	}
	for name, text := range rendered {
		files[path.Base(name)] = text
	}
	return files, nil
}
