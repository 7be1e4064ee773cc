package accounts

import (
	"fmt"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// The process that is taken for the container's first one ends, and another goes on. The helper is
// moved back, and is charged to the quota. The next helper is placed for as long as the other lives.
func TestPlacementEndsBeforeTheContainer(t *testing.T) {
	a := start(t, nil)
	g := placeable(t, 20*time.Millisecond)
	first, second := run(t, g, "exec sleep 1000"), run(t, g, "exec sleep 1000")
	if first.Process.Pid > second.Process.Pid {
		first, second = second, first
	}
	attach := func(script string) Attached {
		t.Helper()
		attached, err := a.Attach(Helper{PID: run(t, nil, script).Process.Pid, Container: g.Name, Source: "x"})
		if err != nil || attached.By != api.ByPlace {
			t.Fatalf("%+v, %v", attached, err)
		}
		return attached
	}
	attached := attach(spin)
	a.mu.Lock()
	moved := a.helpers[attached.ID].placement.Done()
	a.mu.Unlock()
	_ = first.Process.Kill()
	<-moved
	a.scan()
	if _, helpers, _ := a.Show(); len(helpers) != 1 || helpers[0].By != api.ByQuota || helpers[0].Reason == "" {
		t.Errorf("it was moved back: %+v", helpers)
	}
	if by := one(t, a).By["x"]; by != api.ByQuota {
		t.Errorf("the source is charged by %q", by)
	}
	testkit.Eventually(t, func() error {
		if q := quotaOf(t, g); q >= 20*time.Millisecond {
			return fmt.Errorf("the quota is %v", q)
		}
		return nil
	})
	attach("exec sleep 1000")
	a.mu.Lock()
	defer a.mu.Unlock()
	if pid := a.byName[g.Name].init.PID(); pid != second.Process.Pid {
		t.Errorf("process %d is taken for the first one, not %d", pid, second.Process.Pid)
	}
}

// A container's first process is the one that it was opened with. Another may have a lower pid.
func TestFirstProcessIsKnown(t *testing.T) {
	a := start(t, nil)
	g := group(t, 20*time.Millisecond)
	before, first := run(t, g, "exec sleep 1000"), run(t, g, "exec sleep 1000")
	if before.Process.Pid > first.Process.Pid {
		before, first = first, before
	}
	if err := a.Open(Container{Name: "web", PID: first.Process.Pid}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Attach(Helper{PID: run(t, nil, "exec sleep 1000").Process.Pid, Container: "web"}); err != nil {
		t.Fatal(err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if pid := a.byName["web"].init.PID(); pid != first.Process.Pid {
		t.Errorf("process %d is taken for the first one, not %d; another is %d", pid, first.Process.Pid, before.Process.Pid)
	}
}
