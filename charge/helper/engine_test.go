package helper

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/charge/bandwidth"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
)

// pidsOf finds processes by a part of their arguments.
func pidsOf(t *testing.T, parts ...string) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, file := range files {
		text, _ := os.ReadFile(file) // it may have ended
		all := len(text) > 0
		for _, part := range parts {
			all = all && strings.Contains(strings.ReplaceAll(string(text), "\x00", " "), part)
		}
		var pid int
		if _, err := fmt.Sscanf(file, "/proc/%d/", &pid); all && err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// A real shim is placed below its container's quota. The container can still be used, ended and
// removed, and leaves no group.
func TestPlacedShim(t *testing.T) {
	image, err := engines.BuildImage(t.TempDir())
	var needs *testkit.NeedsError
	if errors.As(err, &needs) {
		t.Skipf("skip: needs the programs that the image is made of: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	top := testkit.Build(t, testkit.Options{NoRemote: true})
	r := engines.NewRig(t, top.Host, engines.Options{Image: image})
	e := r.Start(t, "ctr")
	j := newJournal(t)
	for _, name := range []string{"placed0", "placed1"} {
		if err := e.Run(engines.Container{Name: name, None: true, Args: []string{"sleep", "98765"}}); err != nil {
			t.Fatal(err)
		}
		var shims, inits []int
		testkit.Eventually(t, func() error { // it becomes that only by exec
			shims, inits = pidsOf(t, "containerd-shim", "-id "+name+" "), pidsOf(t, "sleep 98765")
			if len(shims) != 1 || len(inits) != 1 {
				return fmt.Errorf("shims %v, inits %v", shims, inits)
			}
			return nil
		})
		g, err := bandwidth.OfProcess(inits[0])
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		old := groupOf(t, shims[0])
		l, err := Place(j, process(t, shims[0]), process(t, inits[0]), g)
		if g.Version() == "v2" {
			// There a container's processes are where the quota is.
			if !errors.Is(err, ErrNotPlaceable) {
				t.Errorf("%v, want %v", err, ErrNotPlaceable)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.Exec(name, "true"); err != nil {
			t.Error(err)
		}
		if err := e.Pause(name); err != nil {
			t.Error(err)
		}
		if err := e.Unpause(name); err != nil {
			t.Error(err)
		}
		if err := e.Kill(name); err != nil {
			t.Error(err)
		}
		<-l.Done()
		if err := l.Undo(); err != nil {
			t.Error(err)
		}
		if now, err := bandwidth.OfProcess(shims[0]); err == nil { // it ends with its container
			if now.Path() != old {
				t.Errorf("the shim is in %s, was in %s", now.Path(), old)
			}
			now.Close()
		}
		goneSoon(t, g.Path())
		if err := e.Remove(name); err != nil {
			t.Error(err)
		}
	}
}
