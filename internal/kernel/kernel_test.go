package kernel

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/cgroup"
)

func TestFeaturesAreDescribed(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range Features() {
		if f.Name == "" || f.Lost == "" || f.Probe == nil || seen[f.Name] {
			t.Errorf("feature %+v: it has no name, no probe, nothing that is lost without it, or is there twice", f)
		}
		if f.early && !f.Required {
			t.Errorf("%s is not required, but no program is started without it", f.Name)
		}
		if strings.HasSuffix(f.Lost, ".") || strings.Contains(f.Lost, "\n") {
			t.Errorf("%s: what is lost is not part of a line: %q", f.Name, f.Lost)
		}
		seen[f.Name] = true
	}
}

// On this machine the tests of all other packages run: nothing that is required
// is missing. What the probes have made is gone.
func TestExamineHere(t *testing.T) {
	if !privileged() {
		t.Skip("skip: needs root")
	}
	own, err := cgroup.Own()
	if err != nil {
		t.Fatal(err)
	}
	var before int
	for range 2 { // in the first round the runtime opens files of its own
		before = openFiles(t)
		results, err := Examine(Features())
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range results {
			if r.Required && (r.Present == nil || !*r.Present) {
				t.Errorf("%s: %s", r.Name, r.Detail)
			}
		}
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d files are open, %d were before", after, before)
	}
	if left, _ := filepath.Glob(filepath.Join(own, fmt.Sprintf("tsugiki-doctor-%d*", os.Getpid()))); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if err := Require(); err != nil {
		t.Error(err)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// What probes report is told apart: missing, forbidden, not to be told.
func TestTry(t *testing.T) {
	for _, tt := range []struct {
		name  string
		since string
		err   error
		want  error  // wrapped by what comes of it
		says  string // part of it
	}{
		{"unknown call", "6.6", unix.ENOSYS, ErrNotSupported, "feature is not supported by this kernel; it needs Linux 6.6 or later, built with it"},
		{"unknown flag", "6.6", fmt.Errorf("try: %w", unix.EINVAL), ErrNotSupported, "6.6"},
		{"unknown to BPF", "5.2", fmt.Errorf("try: %w", ebpf.ErrNotSupported), ErrNotSupported, "5.2"},
		{"not the kernel's", "", unix.ENOENT, unix.ENOENT, "no such file"},
		{"another fault", "6.6", unix.ENOMEM, unix.ENOMEM, "cannot allocate memory"},
		{"too few privileges", "6.6", fmt.Errorf("%w: run it as root", ErrPrivilege), ErrPrivilege, "run it as root"},
		{"not to be told", "6.6", Untold("cannot be told so"), errUntold, "cannot be told so"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := Feature{Name: "feature", Since: tt.since, Probe: func(*Scratch) (string, error) { return "", tt.err }}
			_, err := f.try(nil)
			if !errors.Is(err, tt.want) || !strings.Contains(fmt.Sprint(err), tt.says) {
				t.Errorf("got %v, want %v that says %q", err, tt.want, tt.says)
			}
			if untellable := errors.Is(err, errUntold); untellable != errors.Is(tt.want, errUntold) {
				t.Errorf("can be told: %v", !untellable)
			}
		})
	}
	t.Run("forbidden", func(t *testing.T) {
		f := Feature{Name: "feature", Since: "6.6", Probe: func(*Scratch) (string, error) { return "", unix.EPERM }}
		if _, err := f.try(nil); errors.Is(err, errUntold) == privileged() {
			t.Errorf("with privileges %v, it is %v", privileged(), err)
		}
	})
}
