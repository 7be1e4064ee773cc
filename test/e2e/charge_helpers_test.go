package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/charge/bandwidth"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// paying is a container as an engine makes one, but for the engine: cgroups with a
// quota, and a program in them.
type paying struct {
	*testkit.Groups
	*bandwidth.Group
	given bandwidth.Limit
}

// newPaying makes one whose quota is for the usual period.
func newPaying(t *testing.T, quota time.Duration) *paying {
	t.Helper()
	p := limit(t, testkit.NewGroups(t, "freezer"), quota)
	sleeper := program(t, "sleep", "1000")
	p.Enter(t, sleeper.Process.Pid)
	return p
}

// limit gives cgroups a quota.
func limit(t *testing.T, groups *testkit.Groups, quota time.Duration) *paying {
	t.Helper()
	p := &paying{Groups: groups}
	var err error
	if p.Group, err = bandwidth.Open(p.Name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	if err := p.SetQuota(quota); err != nil {
		t.Fatal(err)
	}
	if p.given, err = p.Limit(); err != nil {
		t.Fatal(err)
	}
	return p
}

// program starts one outside of containers, which ends with the test.
func program(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.Command(name, args...)
	launch(t, c)
	return c
}

// launch starts a program, which ends with the test.
func launch(t *testing.T, c *exec.Cmd) {
	t.Helper()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
}

// print has a program of the container print without end to one outside, which is
// returned.
func (p *paying) print(t *testing.T) *exec.Cmd {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	reader, printer := exec.Command("cat"), exec.Command("yes")
	reader.Stdin, printer.Stdout = r, w
	launch(t, reader)
	launch(t, printer)
	p.Enter(t, printer.Process.Pid)
	return reader
}

// frozen tells whether the container is frozen, by whomever, by one freezer or the
// other.
func (p *paying) frozen() (bool, error) {
	if state, err := os.ReadFile("/sys/fs/cgroup/freezer" + p.Name + "/freezer.state"); err == nil && string(state) != "THAWED\n" {
		return true, nil
	}
	f, err := p.Freezer()
	if err != nil {
		return false, err
	}
	defer f.Close()
	return f.Frozen()
}

// untouched tells what is not as the container was given.
func (p *paying) untouched() error {
	now, err := p.Limit()
	if err != nil {
		return err
	}
	frozen, err := p.frozen()
	if err != nil {
		return err
	}
	helpers := filepath.Join(p.Path(), bandwidth.HelperGroup)
	if now != p.given || frozen || exists(helpers) {
		return fmt.Errorf("%s: limit %+v, given %+v; frozen: %v, group of helpers: %v", p.Name, now, p.given, frozen, exists(helpers))
	}
	return nil
}

// cpuGroup is the cgroup of a process in the cpu hierarchy.
func cpuGroup(t *testing.T, pid int) string {
	t.Helper()
	g, err := bandwidth.OfProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	return g.Path()
}

// charges is what the agent says it has charged.
func (n *asked) charges(t *testing.T) api.Charges {
	t.Helper()
	all, err := n.client().Charges()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func (n *asked) client() *api.Client { return api.Dial(n.socket()) }

// account is that of a container, by its cgroup; nil if there is none.
func (n *asked) account(t *testing.T, group string) *api.Charged {
	t.Helper()
	return accountOf(n.charges(t), group)
}

func accountOf(all api.Charges, group string) *api.Charged {
	i := slices.IndexFunc(all.Containers, func(c api.Charged) bool { return c.Group == group })
	if i < 0 {
		return nil
	}
	return &all.Containers[i]
}

// borrowedFrom is what a source has spent for the container.
func borrowedFrom(c *api.Charged, source string) time.Duration {
	if c != nil {
		for _, b := range c.Borrowed {
			if b.Source == source {
				return time.Duration(b.US) * time.Microsecond
			}
		}
	}
	return 0
}

// undoHelper is the pid of the agent's undo helper; 0 while there is none.
func (d *daemon) undoHelper() int { return child(d.cmd.Process.Pid, "tsugiki-undo") }

// awaitUndoHelper waits until there is an undo helper.
func (d *daemon) awaitUndoHelper(t *testing.T) int {
	t.Helper()
	var pid int
	testkit.Eventually(t, func() error {
		if pid = d.undoHelper(); pid == 0 {
			return errors.New("the agent has no undo helper")
		}
		return nil
	})
	return pid
}
