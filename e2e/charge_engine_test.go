package e2e

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/agent/api"
	"github.com/tsugiki/tsugiki/charge/bandwidth"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
)

// engineWait is how long an engine may take for what it is asked, while it has to
// wait for a container that is held, on a loaded machine.
const engineWait = 10 * time.Second

// docker runs a command of the rig's engine, and returns what it prints.
func (n *node) docker(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	began := time.Now()
	out, err := n.rig.Command(ctx, "docker", args...).CombinedOutput()
	if took := time.Since(began); took > engineWait {
		t.Errorf("docker %s took %v", strings.Join(args, " "), took)
	}
	if err != nil {
		err = fmt.Errorf("docker %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), err
}

// mustDocker is docker for what has to succeed.
func (n *node) mustDocker(t *testing.T, args ...string) string {
	t.Helper()
	out, err := n.docker(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// asked is the node's agent.
func (n *node) asked() *asked {
	return &asked{daemon: &daemon{run: filepath.Dir(n.socket())}, w: n.world}
}

// group opens the cgroup of a container by its id.
func (n *node) group(t *testing.T, id string) *paying {
	t.Helper()
	p := &paying{Groups: &testkit.Groups{Name: "/" + filepath.Base(n.rig.Group()) + "/" + id}}
	var err error
	if p.Group, err = bandwidth.Open(p.Name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	if p.given, err = p.Limit(); err != nil {
		t.Fatal(err)
	}
	return p
}

// awaitHeld waits until a container is held.
func (n *node) awaitHeld(t *testing.T, p *paying) {
	t.Helper()
	testkit.Eventually(t, chargePatience, func() error {
		if c := n.asked().account(t, p.Path()); c == nil || !c.Held.Now {
			return fmt.Errorf("it is not held: %+v", c)
		}
		return nil
	})
}

// TestChargeHeldDocker has users work with a container that is held most of the time.
func TestChargeHeldDocker(t *testing.T) {
	n := newNode(t, engineCase{engine: "docker", none: true}, "[charge]", "within = \"%s\"", "shared = [\"dockerd\"]")
	run := func(t *testing.T, runtime string) *paying {
		t.Helper()
		id := n.mustDocker(t, "run", "-d", "--runtime", runtime, "--name", "yes", "--network", "none", "--log-opt", "max-size=10m", "--cpus", "0.25", engines.ImageName, "yes")
		p := n.group(t, id)
		n.awaitHeld(t, p)
		return p
	}
	gone := func(t *testing.T, p *paying) {
		t.Helper()
		testkit.Eventually(t, chargePatience, func() error {
			if c := n.asked().account(t, p.Path()); c != nil {
				return fmt.Errorf("it still has an account: %+v", c)
			}
			return nil
		})
	}
	t.Run("exec", func(t *testing.T) {
		p := run(t, "tsugiki") // has the container let go; without, it takes what little CPU time is left
		for range 3 {
			if out := n.mustDocker(t, "exec", "yes", "echo", "hello"); out != "hello" {
				t.Errorf("exec printed %q", out)
			}
		}
		// Docker has no logger: the runtime, which waits for the container, is none.
		if c := n.asked().account(t, p.Path()); borrowedFrom(c, "logger") != 0 {
			t.Errorf("it is charged for a logger: %+v", c)
		}
	})
	t.Run("pause", func(t *testing.T) {
		p := n.group(t, n.mustDocker(t, "inspect", "-f", "{{.Id}}", "yes"))
		for range 2 {
			n.awaitHeld(t, p)
			n.mustDocker(t, "pause", "yes")
			began := time.Now()
			for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
				if frozen, err := p.frozen(); err != nil || !frozen {
					t.Fatalf("a paused container is frozen: %v, %v, after %v; %+v", frozen, err, time.Since(began), n.asked().account(t, p.Path()))
				}
			}
			n.mustDocker(t, "unpause", "yes")
			if out := n.mustDocker(t, "exec", "yes", "echo", "hello"); out != "hello" {
				t.Errorf("exec printed %q", out)
			}
		}
		n.mustDocker(t, "rm", "-f", "yes")
		gone(t, p)
	})
	t.Run("restart", func(t *testing.T) {
		p := run(t, "runc")
		n.mustDocker(t, "restart", "-t", "1", "yes")
		n.mustDocker(t, "exec", "yes", "true")
		n.mustDocker(t, "stop", "-t", "1", "yes")
		n.mustDocker(t, "rm", "yes")
		gone(t, p)
	})
	t.Run("kill", func(t *testing.T) {
		p := run(t, "runc")
		n.mustDocker(t, "kill", "yes")
		n.mustDocker(t, "start", "yes")
		n.awaitHeld(t, p)
		n.mustDocker(t, "rm", "-f", "yes")
		gone(t, p)
	})
	t.Run("update", func(t *testing.T) { n.testChargeUpdate(t, run(t, "runc")) })
}

// testChargeUpdate has a container's quota changed by its user: while it is held, while
// its quota is lowered, and while it owes nothing.
func (n *node) testChargeUpdate(t *testing.T, p *paying) {
	adopted := func(quota time.Duration) {
		t.Helper()
		testkit.Eventually(t, chargePatience, func() error {
			if c := n.asked().account(t, p.Path()); c == nil || c.Before.QuotaUS != quota.Microseconds() {
				return fmt.Errorf("the account of the container with %v is %+v", quota, c)
			}
			return nil
		})
	}
	for _, cpus := range []float64{0.4, 0.1, 0.3} {
		n.mustDocker(t, "update", "--cpus", fmt.Sprint(cpus), "yes")
		adopted(time.Duration(cpus * float64(100*time.Millisecond)))
	}
	// A fresh one, without debts.
	n.mustDocker(t, "rm", "-f", "yes")
	p = n.group(t, n.mustDocker(t, "run", "-d", "--name", "yes", "--network", "none", "--log-driver", "none", "--cpus", "0.5", engines.ImageName, "sleep", "1000"))
	if err := n.asked().client().Charge(p.Name, "test", time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if _, err := n.docker(t, "update", "--cpus", "0.2", "yes"); err != nil {
		t.Errorf("an update of one without debts: %v", err)
	} else {
		adopted(20 * time.Millisecond)
	}
	now, err := p.Limit()
	if err != nil {
		t.Fatal(err)
	}
	n.agent.stop(t)
	after, err := p.Limit()
	if err != nil || after.Quota != now.Quota || after.Burst != 0 {
		t.Errorf("the agent leaves %+v, %v", after, err)
	}
	n.mustDocker(t, "rm", "-f", "yes")
	n.startAgent(t)
}

// TestChargeShared divides dockerd's time between two containers that print at
// different rates: each gets its quota and no more.
func TestChargeShared(t *testing.T) {
	n := newNode(t, engineCase{engine: "docker", none: true}, "[charge]", "within = \"%s\"", "shared = [\"dockerd\"]")
	const cpus = 0.25
	const line = "0123456789012345678901234567890123456789012345678901234567890123"
	run := func(name, script string) *paying {
		t.Helper()
		return n.group(t, n.mustDocker(t, "run", "-d", "--name", name, "--network", "none", "--cpus", fmt.Sprint(cpus),
			"--log-opt", "max-size=1m", "--log-opt", "max-file=2", engines.ImageName, "sh", "-c", script))
	}
	noisy := run("noisy", "yes "+line)
	quiet := run("quiet", "while :; do i=0; while [ $i -lt 1000 ]; do i=$((i+1)); done; echo "+line+"; done")
	shared := func(p *paying) (own, borrowed time.Duration, c *api.Charged) {
		t.Helper()
		c = n.asked().account(t, p.Path())
		if c == nil {
			return 0, 0, nil
		}
		return time.Duration(c.OwnUS) * time.Microsecond, borrowedFrom(c, "shared") + borrowedFrom(c, "shim"), c
	}
	testkit.Eventually(t, chargePatience, func() error {
		if _, b, c := shared(noisy); b < 500*time.Millisecond {
			return fmt.Errorf("dockerd's time is not charged: %+v", c)
		}
		return nil
	})
	time.Sleep(2 * time.Second) // what it owes from before
	type sums struct {
		own, borrowed time.Duration
		shared        []api.ChargeShared
	}
	read := func() (s [2]sums, inodes string) {
		for i, p := range []*paying{noisy, quiet} {
			s[i].own, s[i].borrowed, _ = shared(p)
			s[i].shared = n.asked().charges(t).Shared
		}
		out, _ := n.rig.Command(t.Context(), "sh", "-c", "stat -c %i "+n.logFile(t, "noisy")).Output()
		return s, string(out)
	}
	const over = 5 * time.Second
	before, inode := read()
	began := time.Now()
	time.Sleep(over)
	after, rotated := read()
	took := float64(time.Since(began))
	var part [2]float64
	for i, name := range []string{"noisy", "quiet"} {
		own, borrowed := float64(after[i].own-before[i].own)/took, float64(after[i].borrowed-before[i].borrowed)/took
		part[i] = own + borrowed
		t.Logf("%s: own %.4f, dockerd and shim %.4f, together %.4f of %.2f CPUs", name, own, borrowed, part[i], cpus)
		if part[i] > cpus*1.25 {
			t.Errorf("%s got %.3f CPUs, of %.2f", name, part[i], cpus)
		}
		if i == 1 && borrowed > cpus/2 {
			t.Errorf("the quiet one is charged %.3f CPUs", borrowed)
		}
		if i == 0 && borrowed < cpus/3 {
			t.Errorf("the noisy one is charged only %.3f CPUs", borrowed)
		}
	}
	if inode == rotated || inode == "" {
		t.Errorf("the log of the noisy one was not rotated: %q, %q", inode, rotated)
	}
	unowned := func(all []api.ChargeShared) (d, of time.Duration) {
		for _, s := range all {
			d, of = d+time.Duration(s.UnownedUS)*time.Microsecond, of+time.Duration(s.US)*time.Microsecond
		}
		return d, of
	}
	nobodys, all := unowned(after[0].shared)
	nobodys0, all0 := unowned(before[0].shared)
	t.Logf("dockerd spent %v, of it %v for no container", all-all0, nobodys-nobodys0)
	for _, p := range []*paying{noisy, quiet} {
		if err := errors.Join(n.Remove(map[*paying]string{noisy: "noisy", quiet: "quiet"}[p])); err != nil {
			t.Error(err)
		}
	}
}

func (n *node) logFile(t *testing.T, name string) string {
	t.Helper()
	return n.mustDocker(t, "inspect", "-f", "{{.LogPath}}", name)
}
