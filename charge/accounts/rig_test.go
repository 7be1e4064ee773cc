package accounts

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/charge/bandwidth"
	"github.com/tsugiki/tsugiki/charge/journal"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// start starts accounts with files in a directory of their own, without discovery.
func start(t *testing.T, change func(*Config)) *Accounts {
	t.Helper()
	dir := t.TempDir()
	c := Config{
		Journal: filepath.Join(dir, "journal"), Ledger: filepath.Join(dir, "ledger"),
		UndoHelper: filepath.Join(testkit.BuildTsugiki(t), journal.Program),
		Placement:  true, Log: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&c)
	}
	a, err := Start(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

// group makes a cgroup with a quota in 100 ms, for as long as the test.
func group(t *testing.T, quota time.Duration) *cgroups {
	t.Helper()
	groups := testkit.NewGroups(t)
	g, err := bandwidth.Open(groups.Name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	if err := g.SetQuota(quota); err != nil {
		t.Fatal(err)
	}
	return &cgroups{Group: g, Groups: groups}
}

// placeable is group, and helpers can be placed below the cgroup. In cgroup v2 that takes a container
// whose processes are all in a child group of the one with the quota.
func placeable(t *testing.T, quota time.Duration) *cgroups {
	t.Helper()
	g := group(t, quota)
	if g.Version() != "v2" {
		return g
	}
	g.below = filepath.Join(g.Path(), "container")
	err := errors.Join(
		os.WriteFile(filepath.Join(g.Path(), "cgroup.subtree_control"), []byte("+cpu"), 0), os.Mkdir(g.below, 0o755))
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// cgroups are a container's cgroups. Group is the one of the cpu controller.
type cgroups struct {
	*bandwidth.Group
	*testkit.Groups
	below string // the group of the container's processes, if it is another
}

// enter moves a process into the container.
func (g *cgroups) enter(t *testing.T, pid int) {
	t.Helper()
	if g.below == "" {
		g.Enter(t, pid)
		return
	}
	if err := os.WriteFile(filepath.Join(g.below, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
		t.Fatal(err)
	}
}

// run runs a shell script until the test ends, in a group if one is given.
func run(t *testing.T, g *cgroups, script string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sh", "-c", script)
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		_ = cmd.Wait()
	})
	mine, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, func() error { // Start does not wait for the end of execve(2)
		comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", cmd.Process.Pid))
		if err == nil && string(comm) == string(mine) {
			err = fmt.Errorf("the process is still %q", comm)
		}
		return err
	})
	if g != nil {
		g.enter(t, cmd.Process.Pid)
	}
	return cmd
}

func groupOfProcess(t *testing.T, pid int) string {
	t.Helper()
	path, err := bandwidth.PathOfProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	return path
}
