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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tsugiki/tsugiki/kube/kubetest"
)

// byName lists objects by kind and name.
func byName(t *testing.T, list []*unstructured.Unstructured) map[string]any {
	t.Helper()
	all := map[string]any{}
	for _, o := range list {
		key := o.GetKind() + " " + o.GetName()
		if all[key] != nil {
			t.Errorf("%s is there twice", key)
		}
		all[key] = o.Object
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

func TestChartMakesTheManifests(t *testing.T) {
	var list []*unstructured.Unstructured
	for _, text := range append(read(t, "manifests/*.yaml"), read(t, "crds/*.yaml")...) {
		list = append(list, kubetest.Parse(t, []byte(text))...)
	}
	want := byName(t, list)
	delete(want, "Namespace tsugiki") // helm makes it
	if diff := cmp.Diff(want, byName(t, kubetest.Chart(t, "tsugiki", ""))); diff != "" {
		t.Errorf("manifests and chart differ (-manifests +chart):\n%s", diff)
	}
}

// chart is the text of what helm makes.
func chart(t *testing.T, namespace, values string) string {
	t.Helper()
	text, err := json.Marshal(byName(t, kubetest.Chart(t, namespace, values)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestChartOfOtherValues(t *testing.T) {
	const common = `runtimeClass: graft, translateClass: graft46, image: "example.org/kube:1", runDir: /run/other, metrics: "198.51.100.1:9471"`
	for name, tt := range map[string]struct {
		values    string
		has, lack []string
	}{
		"all": {
			`{` + common + `, node: {nodeSelector: {a: b}}, agent: {config: "x = 1"}, containerd: {config: /etc/k3s/a.toml, runDir: /run/k3s, unit: ""}}`,
			[]string{
				`"handler":"tsugiki"`, `"--runtime-class=graft"`, `"handler":"graft46"`, `"--runtime-class=graft46"`, `"--metrics=198.51.100.1:9471"`, `"--namespace=net"`, `"nodeSelector":{"a":"b"}`,
				`"image":"example.org/kube:1"`, `"path":"/run/other"`, `system:serviceaccount:net:tsugiki-kube-node`, `"agent.toml":"x = 1\n"`,
				`"--containerd-config=/etc/k3s/a.toml"`, `"path":"/etc/k3s"`, `"mountPath":"/host/etc/k3s"`, `"path":"/run/k3s"`, `"--containerd-unit="`,
				`"--containerd=/run/k3s/containerd.sock"`,
			},
			[]string{`"namespace":"tsugiki"`, `tsugiki-kube:0.1`, `/etc/containerd`, `--translate`, `/cni`},
		},
		"translation": {
			`{` + common + `, translate: {enabled: true, pluginDir: /usr/lib/cni/}}`,
			[]string{
				`"--translate"`, `"--plugin-dir=/usr/lib/cni/"`, `"mountPath":"/host/usr/lib/cni"`, `"path":"/usr/lib/cni/"`,
				`"path":"/etc/cni/tsugiki-translate.d"`, `"handler":"tsugiki-translate"`, `"name":"graft46"`,
			},
			[]string{`/opt/cni`, `"--containerd=`, `"handler":"graft46"`},
		},
		"containerd is configured elsewhere": {`{containerd: {config: ""}}`, []string{`"--containerd-config="`}, []string{`/etc/containerd`, `containerd-config"`}},
		"the plugin of NRI": {
			`{nri: {enabled: true, dir: /run/other/nri}}`,
			[]string{
				`"command":["/tsugiki-nri"]`, `{"hostPath":{"path":"/run/other/nri","type":"DirectoryOrCreate"},"name":"nri"}`,
				`{"mountPath":"/var/run/nri","name":"nri","readOnly":true}`, `{"mountPath":"/var/run/secrets/kubernetes.io/serviceaccount","name":"no-token","readOnly":true}`,
			},
			nil,
		},
		"the package": {
			`{` + common + `, agent: {install: false}}`,
			[]string{`"handler":"graft"`, `"path":"/run/other","type":"Directory"`},
			[]string{`"privileged"`, `hostPID`, `initContainers`, `/opt/tsugiki`, `/etc/containerd`, `ConfigMap`, `nri`},
		},
	} {
		text := chart(t, "net", tt.values)
		for _, want := range tt.has {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no object has %s", name, want)
			}
		}
		for _, not := range tt.lack {
			if strings.Contains(text, not) {
				t.Errorf("%s: an object has %s", name, not)
			}
		}
	}
}

// What uninstalls has the image and the namespace of what installs. The node's record has the rest.
func TestUninstall(t *testing.T) {
	text := read(t, "uninstall.yaml")[0]
	for _, want := range []string{"image: tsugiki-kube:0.1", "hostPID: true", "namespace: tsugiki}"} {
		if !strings.Contains(text, want) || !strings.Contains(read(t, "manifests/workloads.yaml")[0], want) {
			t.Errorf("not in both: %s", want)
		}
	}
	if list := kubetest.Parse(t, []byte(text)); len(list) != 1 || list[0].GetKind() != "DaemonSet" {
		t.Errorf("objects %v", list)
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
