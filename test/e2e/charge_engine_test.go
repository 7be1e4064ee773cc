package e2e

import (
	"context"
	"errors"
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
func (n *node) asked() *asked {
	return &asked{daemon: &daemon{run: filepath.Dir(n.socket())}, w: n.world}
}

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
	return n.ask(t, "inspect", "-f", "{{.LogPath}}", name)
}
