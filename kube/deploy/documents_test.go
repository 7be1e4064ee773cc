package deploy

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/kube/kubetest"
)

// metric finds metrics in an expression, and in the rows of docs/METRICS.md.
var metric = regexp.MustCompile(`\b(tsugiki|controller_runtime|workqueue|rest_client|leader_election)_[a-z_]+`)

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
	known := map[string]bool{}
	for _, m := range metric.FindAllString(document(t, "METRICS.md"), -1) {
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

// document is a file of docs/.
func document(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(kubetest.Root(t), "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// reason finds the reasons of events and conditions in the packages that write them.
var reason = regexp.MustCompile(`(?:\bReason[A-Z]\w*\s*=|\bReason:|c\.Reason, c\.Message =.*?,) "(\w+)"`)

// TestReasons has docs/design/kubernetes.md say what each reason of an event or a condition means.
func TestReasons(t *testing.T) {
	doc, found := document(t, "design/kubernetes.md"), 0
	for _, dir := range []string{"node", "cluster"} {
		files, err := filepath.Glob(filepath.Join(kubetest.Root(t), "kube", dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(f, "_test.go") {
				continue
			}
			for _, m := range reason.FindAllStringSubmatch(string(text), -1) {
				found++
				if !strings.Contains(doc, "| `"+m[1]+"` |") {
					t.Errorf("%s has the reason %s, and no table of docs/design/kubernetes.md has it", filepath.Base(f), m[1])
				}
			}
		}
	}
	if found < 12 {
		t.Errorf("only %d reasons were found", found)
	}
}
