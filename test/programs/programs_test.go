package programs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// A case is an archive of text files:
//
//	needs       programs, or patterns of paths, without which the case is skipped
//	rules       ingress rules of the container
//	inside.sh   what runs in the container, or bare in the host's namespace
//	beside.sh   what runs at the same time in another container of the same namespace, with the
//	            rules of the file beside; once inside.sh has ended, its standard input does
//	outside.sh  what runs on the remote, each time that inside.sh calls "outside ARG..."
//	want        what all print, beside.sh last; a status other than 0 is the last line
//	fails       what they print in a container while the case is pending
//
// All files are in the folder @DIR@, which is where the scripts run, with the functions of
// testdata/lib.sh. @BIN@ is the folder of our own programs; @HOST@, @HOST6@, @REMOTE@ and
// @REMOTE6@ are addresses.

// columns are the ways to run every case: the arguments of tsugiki, or none for the control.
var columns = []struct {
	name  string
	graft []string
}{
	{name: "bare"},
	{name: "auto", graft: []string{"run", "--mode", "auto"}},
	{name: "seccomp", graft: []string{"run", "--mode", "seccomp"}},
}

// egress are the rules that each container has beside the case's own.
var egress = []string{"-e", "0.0.0.0/0=0.0.0.0", "-e", "::/0=::"}

func TestMain(m *testing.M) {
	// Programs wait for one another most of their time.
	if err := testkit.DefaultParallel("12"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// TestPrograms runs every case in every column. A case that is pending has to fail in the way
// that its file "fails" says.
func TestPrograms(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("find cases: %v", err)
	}
	tsugiki, bin := filepath.Join(testkit.BuildTsugiki(t), "tsugiki"), build(t)
	cases := map[string]bool{}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".txtar")
		cases[name] = true
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			archive, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			needs(t, archive)
			for _, col := range columns {
				t.Run(col.name, func(t *testing.T) {
					t.Parallel()
					r := newRig(t, archive, bin, testkit.Options{})
					if col.graft == nil {
						compare(t, r.file("want"), r.run(t))
						return
					}
					r.graft = slices.Concat([]string{tsugiki}, col.graft, r.place(t, tsugiki), egress)
					judge(t, r, pending[name], r.run(t))
				})
			}
		})
	}
	for name := range pending {
		if !cases[name] {
			t.Errorf("pending: there is no case %s", name)
		}
	}
}

// judge compares what a case prints in a container. Reason is why it is pending, or "".
func judge(t *testing.T, r *rig, reason, got string) {
	t.Helper()
	want, fails := r.file("want"), r.file("fails")
	switch {
	case (reason != "") != (fails != ""):
		t.Error("a case is pending if it has a reason and a file fails")
	case reason != "" && got == want:
		t.Errorf("the case works: take it off the table (%s)", reason)
	case reason != "":
		compare(t, fails, got)
	default:
		compare(t, want, got)
	}
}

// needs skips a case whose programs are not installed. Paths may be patterns.
func needs(t *testing.T, c *txtar.Archive) {
	t.Helper()
	for _, f := range c.Files {
		if f.Name != "needs" {
			continue
		}
		for _, program := range strings.Fields(string(f.Data)) {
			if found, _ := filepath.Glob(program); len(found) > 0 {
				program = found[0]
			}
			testkit.Program(t, program)
		}
	}
}

func compare(t *testing.T, want, got string) {
	t.Helper()
	if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("the programs print\n%swhich is not what is wanted (-want +got):\n%s", got, diff)
	}
}
