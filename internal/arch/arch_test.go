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

const module = "github.com/tsugiki/tsugiki"

// room is a folder with all below it, unless a longer one has a row of its own.
type room struct {
	folder  string
	imports []string // folders of ours, besides those that everybody may import
	why     string   // these, or none
}

// rooms are those of docs/ARCHITECTURE.md, which does not repeat their imports.
var rooms = []room{
	{"api", nil, "messages and names that programs of others use: whoever imports it gets nothing else"},
	{"bpf", nil, "kernel programs and their tables, as they were compiled"},
	{"endpoint", nil, "a grammar: it opens no socket"},
	{"afgraft", []string{"endpoint"}, "an interface of programs, which bind endpoints by name"},
	{"intercept/filter", []string{"afgraft"}, "computes a seccomp filter, which knows AF_GRAFT's numbers"},

	{"gate", nil, "the wire to the gates"},
	{"keeper", nil, "the wire to the keepers"},
	{"shim", nil, "a name and a variable of the environment"},

	{"policy", []string{"endpoint"}, "rules name endpoints: a grammar and verdicts, which open nothing"},
	{"policy/enforcer", []string{"afgraft", "bpf", "endpoint", "policy"}, "has kernel programs enforce a table of rules, and keeps what belongs to AF_GRAFT sockets"},
	{"policy/policytest", []string{"endpoint", "policy"}, "for tests: no other row may have it"},
	{"graft", []string{"afgraft", "endpoint", "keeper", "policy"}, "decides by rules, and has the keeper make sockets"},
	{"intercept/notify", []string{"afgraft", "gate", "graft"}, "brings the engine the calls that the gate passes on"},
	{"relay", []string{"keeper", "policy/enforcer"}, "has its sockets known to the kernel programs"},
	{"agent/rules", []string{"api", "endpoint", "intercept/filter", "internal/config", "policy"}, "decides by texts alone what a container is given"},
	{"agent/grants", []string{"agent/rules", "api", "policy"}, "a table and who waits for it: it knows no container"},
	{"agent/ports", []string{"endpoint", "graft", "policy"}, "knows whose ports are, and opens no socket"},
	{"agent/container", []string{
		"afgraft", "agent/ports", "agent/rules", "api", "endpoint", "gate", "graft", "intercept", "internal/launch", "keeper", "policy",
		"outsource/host", "policy/enforcer", "relay", "translate", "translate/dns", "translate/ftp", "translate/sip",
	}, "puts the systems of one container together, and knows neither its owner nor HTTP"},
	{"agent/vm", []string{"agent/container", "outsource/holder", "outsource/host", "outsource/stream", "outsource/vsock"}, "joins a VMM with a container, and decides nothing"},
	{"agent/httpapi", []string{"agent/container", "agent/grants", "agent/ports", "agent/rules", "api", "endpoint", "policy"}, "gives errors of containers their status, and knows no daemon"},
	{"agent/daemon", []string{
		"agent/container", "agent/grants", "agent/httpapi", "agent/ports", "agent/rules", "agent/vm", "api", "charge/accounts", "charge/bandwidth", "endpoint", "forward",
		"gate", "graft",
		"internal/config", "internal/launch", "keeper", "policy", "policy/enforcer", "shim", "translate/dns",
	}, "has containers, and makes none of their parts"},
	{"agent/run", []string{
		"agent/container", "agent/httpapi", "agent/ports", "agent/rules", "api", "gate", "intercept/filter", "agent/vm", "internal/launch", "shim",
	}, "has one program or virtual machine, in a container of its own or by the daemon's API"},
	{"oci", []string{"api", "intercept/filter", "internal/config", "shim"}, "speaks to the agent by its API alone"},

	{"translate", nil, "tables, and the arithmetic of addresses: it opens no socket"},
	{"translate/dns", []string{"translate"}, "answers names by a table, on sockets that it is given"},
	{"translate/ftp", nil, "rewrites control connections that it is given, and opens no socket"},
	{"translate/sip", nil, "rewrites connections that it is given, and opens no socket"},

	{"charge", []string{"api"}, "a client of the agent, for programs of others"},
	{"charge/balance", nil, "arithmetic"},
	{"charge/bandwidth", nil, "files of cgroups"},
	{"charge/discover", nil, "reads /proc"},
	{"charge/journal", nil, "knows orders, and no meaning of them"},
	{"charge/ledger", nil, "knows sums, and not where they come from"},
	{"charge/slots", nil, "numbers"},
	{"charge/helper", []string{"charge/bandwidth", "charge/journal"}, "moves processes into groups, and notes how to undo that"},
	{"charge/shared", []string{"bpf", "charge/helper", "charge/slots"}, "has kernel programs mark whom a thread works for"},
	{"charge/softirq", []string{"bpf", "charge/slots"}, "has kernel programs count packets"},
	{"charge/enforce", []string{"charge/balance", "charge/bandwidth", "charge/journal", "charge/ledger"}, "takes from a group what the balance says"},
	{"charge/accounts", []string{
		"api", "charge/bandwidth", "charge/discover", "charge/enforce", "charge/helper", "charge/journal", "charge/ledger", "charge/shared",
		"charge/softirq",
	}, "puts the parts of charging together"},

	{"forward", []string{"bpf"}, "has kernel programs hand packets to pods, and makes no link"},
	{"forward/cni", []string{"forward", "forward/offload/card", "forward/offload/dpu", "forward/offload/ovsdb", "forward/offload/ports"}, "makes pods' links, and enters them into the table"},
	{"forward/offload", []string{"forward", "forward/offload/card", "forward/offload/dpu", "forward/offload/flows", "forward/offload/ovsdb", "forward/offload/ports"}, "has a switch elsewhere take flows, and makes no port"},
	{"forward/offload/card", nil, "links, and a card's files: it knows no switch"},
	{"forward/offload/dpu", nil, "what a host and its DPU say to each other"},
	{"forward/offload/dpuagent", []string{"forward/offload/card", "forward/offload/dpu", "forward/offload/ovsdb", "forward/offload/ports"}, "looks after a switch on the DPU, and knows no pod"},
	{"forward/offload/flows", []string{"forward/offload/dpu"}, "computes texts: it opens nothing"},
	{"forward/offload/ovsdb", nil, "a protocol, on a connection that it is given"},
	{"forward/offload/ports", []string{"forward", "forward/offload/card", "forward/offload/dpu", "forward/offload/ovsdb"}, "rows of a database, on a client that it is given"},

	{"outsource/wire", nil, "messages between a guest and its host"},
	{"outsource/vsock", nil, "a device: it knows sockets and bytes, and no meaning of ports"},
	{"outsource/holder", nil, "files of which it knows no meaning"},
	{"outsource/stream", []string{"outsource/vsock", "outsource/wire"}, "sockets and bytes, and the ports at which guests arrive"},
	{"outsource/host", []string{"graft", "keeper", "outsource/vsock", "outsource/wire"}, "brings the engine the calls of guests"},
	{"outsource/guest", []string{"outsource/wire"}, "runs in a guest, where there is no engine"},

	{"density/load", nil, "programs that run in containers"},
	{"density/overlay", nil, "mounts"},
	{"density/result", nil, "what a study has measured"},
	{"density/report", []string{"density/result"}, "draws what was measured, and cannot measure"},
	{"density/rig", []string{"api", "internal/bundle", "internal/cni"}, "starts containers, and the agent as a user does"},
	{"density/sweep", []string{"density/result", "density/rig"}, "repeats a figure for more and more containers"},
	{"density/figures", []string{"api", "density/load", "density/overlay", "density/result", "density/rig", "density/sweep"}, "what is measured"},

	{"cmd/tsugiki", []string{
		"agent/daemon", "agent/rules", "agent/run", "agent/vm", "api", "density/figures", "density/report", "density/result", "density/rig", "density/sweep", "endpoint",
		"forward", "forward/offload", "forward/offload/card", "forward/offload/dpu", "forward/offload/dpuagent", "intercept/filter", "internal/config", "internal/launch", "internal/setup", "outsource/guest", "outsource/holder", "policy",
		"translate/dns",
	}, "the command line"},
	{"cmd/tsugiki-runtime", []string{"oci"}, "the command line"},
	{"cmd/tsugiki-cni", []string{"forward/cni"}, "the command line"},

	{"bench", []string{"api", "bench", "density/report", "density/result", "density/rig", "forward", "forward/offload", "forward/offload/dpu", "forward/offload/flows", "gate", "internal/bundle", "internal/cni", "internal/testkit", "keeper"}, "measures, and is no part of the product"},
	{"test", nil, "tests"},

	{"internal/arch", nil, "tests"},
	{"internal/testreport", nil, "reads what go test prints"},
	{"internal/testkit", []string{"internal/bundle", "internal/testkit"}, "for tests and benchmarks: no other row may have it"},
	{"internal/bundle", nil, "files: it mounts nothing"},
	{"internal/cni", nil, "runs network plugins"},
	{"internal/config", nil, "a file's grammar"},
	{"internal/setup", nil, "edits texts of engines' configurations: it calls none"},
	{"internal/launch", []string{"shim"}, "starts one program, and has it load the library"},
	{"internal/launch/tsugiki-launch", []string{"internal/launch"}, "the child of the room above it"},
	{"internal/cgroup", nil, anybody},
	{"internal/cputime", nil, anybody},
	{"internal/kernel", nil, anybody},
	{"internal/mapped", nil, anybody},
	{"internal/netns", nil, anybody},
	{"internal/programs", nil, anybody},
	{"internal/sys", nil, anybody},
	{"internal/watch", nil, anybody},
	{"internal/wire", nil, anybody},
}

// anybody may import these rooms: each is one thing of the kernel's.
const anybody = "a thing of the kernel's"

type pkg struct {
	ImportPath string
	Doc        string
	Imports    []string
	GoFiles    []string

	TestGoFiles, XTestGoFiles []string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Doc,Imports,GoFiles,TestGoFiles,XTestGoFiles", module+"/...")
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

// roomOf finds the row for a folder.
func roomOf(folder string) *room {
	var found *room
	for i := range rooms {
		if r := &rooms[i]; below(folder, []string{r.folder}) && (found == nil || len(r.folder) > len(found.folder)) {
			found = r
		}
	}
	return found
}

func below(folder string, of []string) bool {
	for _, f := range of {
		if folder == f || strings.HasPrefix(folder, f+"/") {
			return true
		}
	}
	return false
}

// mayImport tells whether a row allows a folder, which is of the room to. A row that names
// another room does not name the rooms below that.
func (r *room) mayImport(folder string, to *room) bool {
	return slices.ContainsFunc(r.imports, func(i string) bool {
		other := i != r.folder && roomOf(i) != nil && roomOf(i).folder == i
		return below(folder, []string{i}) && (!other || to.folder == i)
	})
}

func TestImports(t *testing.T) {
	for _, p := range packages(t) {
		from := strings.TrimPrefix(p.ImportPath, module+"/")
		r := roomOf(from)
		if r == nil {
			t.Errorf("%s is a new folder: write its row down here and in docs/ARCHITECTURE.md", from)
			continue
		}
		for _, i := range p.Imports {
			folder, ours := strings.CutPrefix(i, module+"/")
			if !ours {
				continue
			}
			to := roomOf(folder)
			if to == nil || to.why != anybody && !r.mayImport(folder, to) {
				t.Errorf("%s must not import %s: %s", from, folder, r.why)
			}
		}
	}
}

func TestRoomsAreReal(t *testing.T) {
	all := packages(t)
	for _, r := range rooms {
		if r.why == "" {
			t.Errorf("%s: why?", r.folder)
		}
		for _, folder := range append([]string{r.folder}, r.imports...) {
			if !slices.ContainsFunc(all, func(p pkg) bool { return below(strings.TrimPrefix(p.ImportPath, module+"/"), []string{folder}) }) {
				t.Errorf("%s: there is no %s", r.folder, folder)
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
