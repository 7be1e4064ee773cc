package arch

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// kubeRooms are the packages of the module kube, and what they may import of this module and of
// their own. The module is apart so that nothing else gets its dependencies.
var kubeRooms = []room{
	{"kube/v1alpha1", nil, "resources and their checks"},
	{"kube/grant", []string{"api", "kube/v1alpha1"}, "decides by its arguments alone"},
	{"kube/ports", []string{"kube/grant", "kube/v1alpha1"}, "numbers, and the protocols of rules"},
	{"kube/caches", []string{"api", "kube/grant", "kube/v1alpha1"}, "reads caches, and owns none"},
	{"kube/connect", nil, "connections of a client"},
	{"kube/node", []string{"api", "kube/caches", "kube/grant", "kube/ports", "kube/v1alpha1"}, "speaks to the agent by its API alone"},
	{"kube/bench", []string{"api", "bench/measure", "bench/program", "internal/testkit", "kube/caches", "kube/cluster", "kube/connect", "kube/grant", "kube/kubetest", "kube/node", "kube/v1alpha1"}, "measures, and is no part of the product"},
	{"kube/cluster", []string{"kube/caches", "kube/grant", "kube/v1alpha1"}, "checks resources, and gives nothing to a pod"},
	{"kube/cmd/tsugiki-kube", []string{"api", "kube/caches", "kube/cluster", "kube/connect", "kube/grant", "kube/host", "kube/install", "kube/node", "kube/v1alpha1"}, "the command line"},
	{"kube/install", []string{"internal/setup"}, "files: it starts nothing"},
	{"kube/host", []string{"internal/cgroup", "internal/setup", "internal/sys/mounts"}, "starts programs of a node, and knows not which"},
	{"kube/nri", []string{"api", "oci", "shim"}, "answers containerd by what the agent says, and decides nothing"},
	{"kube/cmd/tsugiki-nri", []string{"api", "internal/config", "kube/nri"}, "the command line"},
	{"kube/deploy", nil, "tests"},
	{"kube/e2e", nil, "tests"},
	{"kube/kubetest", []string{"api", "internal/testkit", "kube/v1alpha1"}, "for tests and the benchmark: no other row may have it"},
}

func TestKubeImports(t *testing.T) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Doc,Imports,GoFiles", "./...")
	cmd.Dir = "../../kube"
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	rows := map[string]*room{}
	for i := range kubeRooms {
		rows[kubeRooms[i].folder] = &kubeRooms[i]
	}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		folder := strings.TrimPrefix(p.ImportPath, module+"/")
		r := rows[folder]
		if r == nil {
			t.Errorf("%s is a new folder: write its row down here", folder)
			continue
		}
		delete(rows, folder)
		if len(p.Doc) < 40 && len(p.GoFiles) > 0 {
			t.Errorf("%s has no package comment that says what it owns", folder)
		}
		for _, i := range p.Imports {
			if of, ours := strings.CutPrefix(i, module+"/"); ours && !below(of, r.imports) {
				t.Errorf("%s must not import %s: %s", folder, of, r.why)
			}
		}
	}
	for folder := range rows {
		t.Errorf("there is no %s", folder)
	}
}

// Nothing of this module needs Kubernetes' client, on a single machine or in a cluster.
func TestNobodyElseLinksKubernetes(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", module+"/cmd/...", module+"/internal/launch/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	linked := strings.Fields(string(out))
	for _, binary := range []string{"tsugiki", "tsugiki-cni", "tsugiki-runtime"} {
		if !slices.Contains(linked, module+"/cmd/"+binary) {
			t.Errorf("%s is not among the binaries", binary)
		}
	}
	for _, p := range linked {
		if strings.HasPrefix(p, "k8s.io/") || strings.HasPrefix(p, "sigs.k8s.io/") || strings.HasPrefix(p, module+"/kube") {
			t.Errorf("a binary links %s", p)
		}
	}
}

// The plugin of NRI speaks to containerd and to the agent, and to no API server.
func TestPluginLinksNoKubernetes(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "./cmd/tsugiki-nri")
	cmd.Dir = "../../kube"
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	linked := strings.Fields(string(out))
	if !slices.Contains(linked, "github.com/containerd/nri/pkg/stub") {
		t.Error("tsugiki-nri does not link NRI's stub")
	}
	for _, p := range linked {
		of, ours := strings.CutPrefix(p, module+"/kube/")
		if strings.HasPrefix(p, "k8s.io/") || strings.HasPrefix(p, "sigs.k8s.io/") || ours && !slices.Contains([]string{"nri", "cmd/tsugiki-nri"}, of) {
			t.Errorf("tsugiki-nri links %s", p)
		}
	}
}
