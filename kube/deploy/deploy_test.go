package deploy

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"

	"github.com/tsugiki/tsugiki/kube/kubetest"
)

// objects reads files of YAML, by kind and name.
func objects(t *testing.T, texts ...string) map[string]any {
	t.Helper()
	all := map[string]any{}
	for _, text := range texts {
		for _, o := range kubetest.Parse(t, []byte(text)) {
			key := o.GetKind() + " " + o.GetName()
			if all[key] != nil {
				t.Errorf("%s is there twice", key)
			}
			all[key] = o.Object
		}
	}
	return all
}

func read(t *testing.T, pattern string) (texts []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(kubetest.Root(t), "deploy", pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("no file is deploy/%s: %v", pattern, err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
	}
	return texts
}

// render has helm make the chart's objects.
func render(t *testing.T, namespace, values string) map[string]any {
	t.Helper()
	c, err := loader.Load(filepath.Join(kubetest.Root(t), "deploy", "helm", "tsugiki"))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	given, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		t.Fatal(err)
	}
	all, err := chartutil.ToRenderValues(c, given, chartutil.ReleaseOptions{Name: "tsugiki", Namespace: namespace}, nil)
	if err != nil {
		t.Fatal(err)
	}
	files, err := engine.Render(c, all)
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for name, text := range files {
		if strings.HasSuffix(name, ".yaml") {
			texts = append(texts, text)
		}
	}
	for _, crd := range c.CRDObjects() {
		texts = append(texts, string(crd.File.Data))
	}
	return objects(t, texts...)
}

func TestChartMakesTheManifests(t *testing.T) {
	want := objects(t, append(read(t, "manifests/*.yaml"), read(t, "crds/*.yaml")...)...)
	delete(want, "Namespace tsugiki") // helm makes it
	if diff := cmp.Diff(want, render(t, "tsugiki", "")); diff != "" {
		t.Errorf("manifests and chart differ (-manifests +chart):\n%s", diff)
	}
}

func TestChartOfOtherValues(t *testing.T) {
	all := render(t, "net", `{runtimeClass: graft, translateClass: graft46, image: "example.org/kube:1", runDir: /run/other, metrics: "198.51.100.1:9471", node: {nodeSelector: {a: b}}}`)
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"handler":"graft"`, `"--runtime-class=graft"`, `"handler":"graft46"`, `"--runtime-class=graft46"`, `"--metrics=198.51.100.1:9471"`, `"--namespace=net"`, `"nodeSelector":{"a":"b"}`,
		`"image":"example.org/kube:1"`, `"path":"/run/other"`, `system:serviceaccount:net:tsugiki-kube-node`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no object has %s", want)
		}
	}
	if strings.Contains(string(text), `"namespace":"tsugiki"`) {
		t.Error("an object is in the namespace tsugiki")
	}
}

// metric finds metrics in an expression, and in the rows of docs/METRICS.md.
var metric = regexp.MustCompile(`\btsugiki_[a-z_]+`)

// TestDashboard checks what Grafana's schema asks of a dashboard, and that its metrics exist.
func TestDashboard(t *testing.T) {
	var d struct {
		Title, UID    string
		SchemaVersion int
		Panels        []struct {
			ID          int
			Type, Title string
			GridPos     struct{ X, Y, W, H int }
			Targets     []struct{ RefID, Expr string }
		}
		Templating struct {
			List []struct{ Name, Type string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, "grafana/tsugiki.json")[0]), &d); err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile(filepath.Join(kubetest.Root(t), "docs", "METRICS.md"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, m := range metric.FindAllString(string(doc), -1) {
		known[m] = true
	}
	if d.Title == "" || d.UID == "" || d.SchemaVersion < 39 || len(d.Panels) == 0 || len(d.Templating.List) == 0 {
		t.Fatalf("no dashboard: %+v", d)
	}
	ids, taken := map[int]bool{}, map[string]string{}
	for _, p := range d.Panels {
		if p.Type == "" || p.Title == "" || ids[p.ID] || len(p.Targets) == 0 {
			t.Errorf("panel %d %q has no type, no title, no query, or the id of another", p.ID, p.Title)
		}
		ids[p.ID] = true
		if p.GridPos.X < 0 || p.GridPos.W <= 0 || p.GridPos.H <= 0 || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %q is outside of the 24 columns", p.Title)
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				at := fmt.Sprint(x, " ", y)
				if taken[at] != "" {
					t.Fatalf("panels %q and %q overlap", taken[at], p.Title)
				}
				taken[at] = p.Title
			}
		}
		refs := map[string]bool{}
		for _, q := range p.Targets {
			if q.RefID == "" || refs[q.RefID] || q.Expr == "" {
				t.Errorf("panel %q has a query without a name of its own", p.Title)
			}
			refs[q.RefID] = true
			for _, m := range metric.FindAllString(q.Expr, -1) {
				if !known[m] && !known[strings.TrimSuffix(m, "_bucket")] {
					t.Errorf("panel %q shows %s, which docs/METRICS.md does not have", p.Title, m)
				}
			}
		}
	}
}
