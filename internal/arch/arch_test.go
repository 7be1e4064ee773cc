package arch

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/tsugiki/tsugiki"

// allowed are the arrows of docs/ARCHITECTURE.md, by folder; a key covers the
// folders below it. Every package may also import the leaves of internal/.
var allowed = map[string][]string{
	"cmd":              {"agent", "api", "density", "endpoint", "intercept/filter", "oci", "policy"},
	"agent":            {"api", "charge/accounts", "charge/bandwidth", "endpoint", "graft", "intercept", "policy", "relay"},
	"charge":           {"api"},
	"oci":              {"api", "intercept/filter"},
	"intercept/notify": {"graft", "intercept/filter"},
	"intercept/filter": {},
	"graft":            {"endpoint", "policy"},
	"policy":           {"bpf", "endpoint"},
	"relay":            {"policy"},
	"charge/marks":     {"bpf", "charge/helper", "charge/slots"},
	"charge/softirq":   {"bpf", "charge/slots"},
	"charge/slots":     {},
	"endpoint":         {},
	"api":              {},
	"charge/journal":   {},
	"charge/ledger":    {},
	"charge/helper":    {"charge/bandwidth", "charge/journal"},
	"charge/discover":  {},
	"bpf":              {},
	"charge/accounts": {
		"charge/bandwidth", "charge/discover", "charge/enforce", "charge/helper", "charge/journal", "charge/ledger", "charge/marks",
		"charge/softirq",
	},
	"charge/bandwidth": {},
	"charge/balance":   {},
	"charge/enforce":   {"charge/balance", "charge/bandwidth", "charge/journal", "charge/ledger"},
	"bench":            {"api", "bench"},
	"conformance":      {},
	"density/load":     {},
	"density/overlay":  {},
	"density/figures":  {"density/load", "density/overlay", "density/result", "density/rig", "density/sweep"},
	"density/result":   {},
	"density/report":   {"density/result"},
	"density/rig":      {"api"},
	"density/sweep":    {"density/result", "density/rig"},
	"e2e":              {},
	"kerneltest":       {},
	"internal":         {},
}

// leaves of internal/ import nothing of ours but each other's namespaces and
// cgroups, on which the keeper and the launcher are built.
var leaves = []string{
	"internal/cgroup", "internal/cni", "internal/config", "internal/cputime", "internal/filelock", "internal/gate", "internal/kernel", "internal/keeper", "internal/launch",
	"internal/mapped", "internal/netns",
	"internal/programs", "internal/testkit", "internal/watch",
}

type pkg struct {
	ImportPath string
	Doc        string
	Imports    []string
	GoFiles    []string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Doc,Imports,GoFiles", module+"/...")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var pkgs []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

// rule finds the row of allowed that is for a folder.
func rule(folder string) ([]string, bool) {
	for f := folder; f != "."; {
		if to, found := allowed[f]; found {
			return to, true
		}
		i := strings.LastIndexByte(f, '/')
		if i < 0 {
			break
		}
		f = f[:i]
	}
	return nil, false
}

func below(folder string, of []string) bool {
	for _, f := range of {
		if folder == f || strings.HasPrefix(folder, f+"/") {
			return true
		}
	}
	return false
}

func TestImports(t *testing.T) {
	for _, p := range packages(t) {
		from := strings.TrimPrefix(p.ImportPath, module+"/")
		to, known := rule(from)
		if !known {
			t.Errorf("%s is a new folder: write its arrows down here and in docs/ARCHITECTURE.md", from)
			continue
		}
		for _, i := range p.Imports {
			folder, ours := strings.CutPrefix(i, module+"/")
			if ours && !below(folder, to) && !below(folder, leaves) {
				t.Errorf("%s must not import %s", from, folder)
			}
		}
	}
}

func TestPackagesSayWhatTheyAreFor(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.GoFiles) > 0 && len(p.Doc) < 40 {
			t.Errorf("%s has no package comment that says what it owns", p.ImportPath)
		}
	}
}
