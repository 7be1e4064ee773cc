package enforcer

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/policy"
	"github.com/tsugiki/tsugiki/policy/policytest"
)

func openFiles(t *testing.T) int {
	t.Helper()
	usage, err := testkit.ProcessUsage(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	return usage.FDs
}

// A process that runs out of files takes no policy over, and leaves no file open. What is in force
// stays in force. The process is given one file more each time, so that each step fails once.
func TestAdoptWithFewFiles(t *testing.T) {
	eps := map[string]*endpoint.Endpoint{"a": policytest.Fresh(t, "a", 1), "b": policytest.Fresh(t, "b", 2), namedEndpoint.Name: namedEndpoint}
	table, err := policy.NewTable(nil, policytest.RulesOf(t, policytest.UpdateRules, eps))
	if err != nil {
		t.Fatal(err)
	}
	withGroup(t, "few-files", func(_ *cgroup.Group, dir *os.File) {
		here := namespaceHere(t)
		first, err := Enforce(dir, table, func(*endpoint.Endpoint) uint64 { return here })
		if err != nil {
			t.Fatal(err)
		}
		if err := first.makeTable(peersTable); err != nil {
			t.Fatal(err)
		}
		want, _ := dump(t, first)
		takeOver := func() (*Enforcement, error) {
			return Adopt(dir, table, func(name string, _ uint32) *endpoint.Endpoint { return eps[name] })
		}
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		var next *Enforcement
		for room := 0; next == nil; room++ {
			before := openFiles(t)
			testkit.WithFiles(t, room, func() { next, err = takeOver() })
			if err == nil {
				t.Logf("it needs %d files", room)
				break
			}
			if !strings.Contains(err.Error(), unix.EMFILE.Error()) { // which the library does not always wrap
				t.Fatalf("with %d files: %v, want EMFILE", room, err)
			}
			if after := openFiles(t); after > before { // the collector may close others meanwhile
				t.Errorf("with %d files: %d are left open (%v)", room, after-before, err)
			}
		}
		defer next.Close()
		defer next.End()
		if got, _ := dump(t, next); !cmp.Equal(want, got) {
			t.Error(cmp.Diff(want, got))
		}
	})
}

// A process that has too few files for a set of programs says so, and leaves no file open.
func TestLoadWithFewFiles(t *testing.T) {
	pinTrivial(t)
	for room, loaded := 0, false; !loaded; room++ {
		before := openFiles(t)
		var s *set
		var err error
		testkit.WithFiles(t, room, func() { s, err = loadOwn(nil) })
		if loaded = err == nil; loaded {
			t.Logf("it needs %d files", room)
			err = s.close()
			if err != nil {
				t.Error(err)
			}
		} else if !errors.Is(err, unix.EMFILE) {
			t.Errorf("with %d files: %v, want EMFILE", room, err)
		}
		if after := openFiles(t); after > before {
			t.Errorf("with %d files: %d are left open (%v)", room, after-before, err)
		}
	}
}
