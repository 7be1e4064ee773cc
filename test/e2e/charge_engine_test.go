package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/charge/bandwidth"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
)

// ask runs the command of the rig's engine, which has to succeed, and returns what it
// prints.
func (n *node) ask(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	out, err := n.rig.Command(ctx, n.engine, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", n.engine, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// asked is the node's agent.
func (n *node) asked() *asked { return ask(n.agent, n.world) }

// group opens the cgroup of a container by its name below the rig's.
func (n *node) group(t *testing.T, name string) *paying {
	t.Helper()
	p := &paying{Groups: &testkit.Groups{Name: "/" + filepath.Base(n.rig.Group()) + "/" + name}}
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

// TestChargeShared divides dockerd's time between two containers that print at
// different rates: each gets its quota and no more.
func TestChargeShared(t *testing.T) {
	if !testkit.Soaking() { // it measures shares of the CPUs there, and has the machine for itself
		t.Parallel()
	}
	n := newNode(t, engineCase{engine: "docker", none: true}, "[charge]", "within = \"%s\"", "shared = [\"dockerd\"]")
	const cpus = 0.25
	const line = "0123456789012345678901234567890123456789012345678901234567890123"
	run := func(name, script string) *paying {
		t.Helper()
		return n.group(t, n.ask(t, "run", "-d", "--name", name, "--network", "none", "--cpus", fmt.Sprint(cpus),
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
	testkit.Eventually(t, func() error {
		if _, b, c := shared(noisy); b < 500*time.Millisecond {
			return fmt.Errorf("dockerd's time is not charged: %+v", c)
		}
		return nil
	})
	logOf := func() string {
		out, _ := n.rig.Command(t.Context(), "sh", "-c", "stat -c %i "+n.logFile(t, "noisy")).Output()
		return string(out)
	}
	first, borrowed := logOf(), func(p *paying) time.Duration { _, b, _ := shared(p); return b }
	before := borrowed(noisy)
	testkit.Eventually(t, func() error {
		if file := logOf(); file == first || file == "" {
			return fmt.Errorf("the log of the noisy one was not rotated: %q, %q", first, file)
		}
		if now, of := borrowed(noisy), borrowed(quiet); now == before || of >= now {
			return fmt.Errorf("the noisy one is charged %v, had been %v, and the quiet one %v", now, before, of)
		}
		return nil
	})
	if testkit.Soaking() {
		n.checkShares(t, cpus, func(p *paying) (own, borrowed time.Duration) { own, borrowed, _ = shared(p); return own, borrowed }, noisy, quiet)
	}
	for _, name := range []string{"noisy", "quiet"} {
		if err := n.Remove(name); err != nil {
			t.Error(err)
		}
	}
}

// checkShares measures for seconds which part of the CPUs two containers get, and what of it was
// spent for them by others. It is for the soak: the parts depend on how busy the machine is.
func (n *node) checkShares(t *testing.T, cpus float64, read func(*paying) (own, borrowed time.Duration), noisy, quiet *paying) {
	t.Helper()
	time.Sleep(2 * time.Second) // what they owe from before
	type sums struct{ own, borrowed time.Duration }
	look := func() (s [2]sums) {
		for i, p := range []*paying{noisy, quiet} {
			s[i].own, s[i].borrowed = read(p)
		}
		return s
	}
	unowned := func() (d, of time.Duration) {
		for _, s := range n.asked().charges(t).Shared {
			d, of = d+time.Duration(s.UnownedUS)*time.Microsecond, of+time.Duration(s.US)*time.Microsecond
		}
		return d, of
	}
	before, began := look(), time.Now()
	nobodys, all := unowned()
	time.Sleep(5 * time.Second)
	after, took := look(), float64(time.Since(began))
	for i, name := range []string{"noisy", "quiet"} {
		own, borrowed := float64(after[i].own-before[i].own)/took, float64(after[i].borrowed-before[i].borrowed)/took
		t.Logf("%s: own %.4f, dockerd and shim %.4f, together %.4f of %.2f CPUs", name, own, borrowed, own+borrowed, cpus)
		switch {
		case own+borrowed > cpus*1.25:
			t.Errorf("%s got %.3f CPUs, of %.2f", name, own+borrowed, cpus)
		case name == "quiet" && borrowed > cpus/2:
			t.Errorf("the quiet one is charged %.3f CPUs", borrowed)
		case name == "noisy" && borrowed < cpus/3:
			t.Errorf("the noisy one is charged only %.3f CPUs", borrowed)
		}
	}
	nobodysNow, allNow := unowned()
	t.Logf("dockerd spent %v, of it %v for no container", allNow-all, nobodysNow-nobodys)
}

func (n *node) logFile(t *testing.T, name string) string {
	t.Helper()
	return n.ask(t, "inspect", "-f", "{{.LogPath}}", name)
}
