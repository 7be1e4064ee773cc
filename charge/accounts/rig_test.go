package accounts

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
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
	return &cgroups{g, groups}
}

// cgroups lists a container's cgroups. The group of the cpu controller is the first.
type cgroups struct {
	*bandwidth.Group
	*testkit.Groups
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
		g.Enter(t, cmd.Process.Pid)
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
