package docs

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"gopkg.in/yaml.v3"

	"github.com/tsugiki/tsugiki/internal/setup"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// texts are the files of the project below folders whose names end in one way, by their paths.
func texts(t *testing.T, end string, folders ...string) map[string]string {
	t.Helper()
	root, err := testkit.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, folder := range folders {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, end) {
				return err
			}
			text, err := os.ReadFile(path)
			name, _ := filepath.Rel(root, path)
			all[name] = string(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// endpointPorts finds the ports of a resource: PORT or FIRST-LAST.
var endpointPorts = regexp.MustCompile(`\bports: *"?(\d+)(?:-(\d+))?`)

// Pods get no ports that other processes of a node take: NodePorts, which are 30000 to 32767 by default, and
// those of net.ipv4.ip_local_port_range, which are 32768 to 60999. The documents say so, and their examples
// are copied.
func TestExamplesHaveFreePorts(t *testing.T) {
	const first, last = 30000, 60999
	found := 0
	all := texts(t, ".md", "README.md", "docs")
	for name, text := range texts(t, ".yaml", "deploy/examples") {
		all[name] = text
	}
	for name, text := range all {
		for _, m := range endpointPorts.FindAllStringSubmatch(text, -1) {
			found++
			from, _ := strconv.Atoi(m[1])
			to, err := strconv.Atoi(m[2])
			if err != nil {
				to = from
			}
			if from <= last && to >= first {
				t.Errorf("%s: %s: other processes of a node take ports from %d to %d", name, m[0], first, last)
			}
		}
	}
	if found < 5 {
		t.Errorf("%d resources with ports were found", found)
	}
}

var (
	leastOfChart = regexp.MustCompile(`(?m)^kubeVersion: ">=(\d+\.\d+)\.0-0"`)
	least        = regexp.MustCompile(`Kubernetes (\d+\.\d+) or\s+later and containerd (\d+\.\d+) or\s+later`)
	leastKube    = regexp.MustCompile(`Kubernetes (\d+\.\d+) (?:or\s+later|以降)`)
)

// The pages name one oldest Kubernetes, which is that of the chart, and one oldest containerd beside it.
func TestOldestKubernetes(t *testing.T) {
	all := texts(t, ".md", "README.md", "README.ja.md", "docs")
	chart := leastOfChart.FindStringSubmatch(texts(t, "Chart.yaml", "deploy/helm/tsugiki")["deploy/helm/tsugiki/Chart.yaml"])
	if chart == nil {
		t.Fatal("the chart names no kubeVersion")
	}
	var containerd []string
	for _, page := range []string{"README.md", "docs/KUBERNETES.md", "docs/LIMITS.md"} {
		m := least.FindStringSubmatch(all[page])
		if m == nil {
			t.Errorf("%s does not say which Kubernetes and containerd are needed", page)
			continue
		}
		containerd = append(containerd, m[2])
	}
	if len(slices.Compact(slices.Clone(containerd))) > 1 {
		t.Errorf("the pages name as the oldest containerd %q", containerd)
	}
	for page, text := range all {
		for _, m := range leastKube.FindAllStringSubmatch(text, -1) {
			if m[1] != chart[1] {
				t.Errorf("%s says %q, and the chart %s", page, m[0], chart[1])
			}
		}
	}
}

// chartValue finds a value of the chart: after --set, and in a sentence or a table by the group that it is of.
var chartValue = regexp.MustCompile("--set ([\\w.]+)|`((?:agent|cluster|containerd|metrics|node|nri|translate)\\.[A-Za-z]+)[=`]")

// The values that the page names are those of the chart.
func TestDocumentedValues(t *testing.T) {
	var values map[string]any
	if err := yaml.Unmarshal([]byte(texts(t, "values.yaml", "deploy/helm")["deploy/helm/tsugiki/values.yaml"]), &values); err != nil {
		t.Fatal(err)
	}
	found := chartValue.FindAllStringSubmatch(texts(t, "KUBERNETES.md", "docs")["docs/KUBERNETES.md"], -1)
	for _, m := range found {
		at := any(values)
		for key := range strings.SplitSeq(m[1]+m[2], ".") {
			table, _ := at.(map[string]any)
			var is bool
			if at, is = table[key]; !is {
				t.Errorf("the chart has no value %s", m[1]+m[2])
				break
			}
		}
	}
	if len(found) < 10 {
		t.Errorf("%d values were found", len(found))
	}
}

// The templates for k3s have our runtime where each version of containerd's configuration has its runtimes. So have the
// tables of the runtime for translated pods, with the program of the DaemonSet.
func TestTemplatesOfK3s(t *testing.T) {
	const base, program = `{{ template "base" . }}`, "/opt/tsugiki/bin/tsugiki-runtime"
	type table = map[string]any
	got := map[string]table{}
	each(t, func(b block) {
		translate := strings.Contains(b.text, ".runtimes."+setup.TranslateName+"]")
		if !translate && !strings.Contains(b.text, base) {
			return
		}
		for _, version := range []int{2, 3} {
			text := fmt.Sprintf("version = %d\n", version) + strings.Replace(b.text, base, "", 1)
			told, err := setup.ReadContainerd([]byte(text), program)
			if err != nil {
				t.Errorf("%s: %v", b, err)
			}
			for name, runtime := range told.Runtimes {
				got[fmt.Sprint(name, " ", version)] = runtime
			}
		}
	})
	ours := func(systemd bool, translate table) table {
		options := table{"BinaryName": program}
		if systemd {
			options["SystemdCgroup"] = true
		}
		of := table{"runtime_type": "io.containerd.runc.v2", "options": options}
		maps.Copy(of, translate)
		return of
	}
	network := table{"cni_conf_dir": filepath.Dir(setup.NetworkFile), "cni_max_conf_num": int64(1)}
	want := map[string]table{
		"tsugiki 2": ours(true, nil), "tsugiki 3": ours(true, nil),
		"tsugiki-translate 2": ours(false, network), "tsugiki-translate 3": ours(true, network),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the runtimes by version of the configuration (-want +got):\n%s", diff)
	}
}
