package e2e

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

var chargeKills = flag.Int("charge-kills", testkit.Times(4, 30), "how often TestChargeKilled kills the agent, its undo helper, or both")

// indebted is what an agent is killed over: a container that is held, one whose quota
// is lowered, and one with a helper below it.
type indebted struct {
	*asked
	t                    *testing.T
	held, lowered, below *paying
	reader, helper       *exec.Cmd // of lowered and below
	home                 string    // the helper's own cgroup
	seen                 map[string]api.Charged
	slowest              time.Duration // undo helper
}

// TestChargeKilled kills the agent, its undo helper, and both, at any moment. What they
// leave is what the containers were given, and the next agent knows what they owe.
func TestChargeKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := &indebted{
		asked: startAgent(t, w), t: t, seen: map[string]api.Charged{},
		held: newPaying(t, 20*time.Millisecond), lowered: newPaying(t, 30*time.Millisecond), below: newPaying(t, 25*time.Millisecond),
	}
	d.reader = d.lowered.print(t)
	d.helper = program(t, "sleep", "1000")
	d.home = cpuGroup(t, d.helper.Process.Pid)
	d.owe()
	if d.account(t, d.held.Path()).Held.Count == 0 {
		testkit.Eventually(t, func() error {
			if d.account(t, d.held.Path()).Held.Count == 0 {
				return fmt.Errorf("it was never held: %+v", d.account(t, d.held.Path()))
			}
			return nil
		})
	}
	for i := range *chargeKills {
		time.Sleep(time.Duration(rand.IntN(250)) * time.Millisecond)
		d.look()
		switch kind := i % 3; kind {
		case 0:
			d.killAgent()
		case 1:
			d.killUndoHelper()
		case 2:
			d.killBoth()
		}
		d.owe()
	}
	d.stop()
	d.checkUntouched("after the end")
	t.Logf("the undo helper ended within %v of the agent", d.slowest)
}

// owe has all three owe something.
func (d *indebted) owe() {
	d.t.Helper()
	c := d.client()
	for _, h := range []api.ChargeHelper{
		{Helper: api.HelperProcess{PID: d.reader.Process.Pid}, To: d.lowered.Name, Source: "reader", By: api.ByQuota},
		{Helper: api.HelperProcess{PID: d.helper.Process.Pid}, To: d.below.Name, Source: "helper", By: api.ByPlace},
	} {
		if _, err := c.AttachHelper(h); err != nil {
			d.t.Fatal(err)
		}
	}
	if group := cpuGroup(d.t, d.helper.Process.Pid); group == d.home {
		d.t.Fatalf("the helper is in %s", group)
	}
	if err := c.Charge(d.held.Name, "test", 200*time.Millisecond); err != nil {
		d.t.Fatal(err)
	}
	d.look()
}

// look checks that no sum has fallen.
func (d *indebted) look() {
	d.t.Helper()
	for _, c := range d.charges(d.t).Containers {
		old := d.seen[c.Group]
		if c.OwnUS < old.OwnUS || c.ForgivenUS < old.ForgivenUS {
			d.t.Errorf("sums have fallen: %+v, before %+v", c, old)
		}
		for _, b := range old.Borrowed {
			if us := borrowedFrom(&c, b.Source).Microseconds(); us < b.US {
				d.t.Errorf("%s: %s has spent %d us, but %d before", c.Group, b.Source, us, b.US)
			}
		}
		if old.Since != "" && old.Since != c.Since {
			d.t.Errorf("%s: since %s, but %s before", c.Group, c.Since, old.Since)
		}
		d.seen[c.Group] = c
	}
}

func (d *indebted) checkUntouched(when string) {
	d.t.Helper()
	for _, p := range []*paying{d.held, d.lowered, d.below} {
		if err := p.untouched(); err != nil {
			d.t.Errorf("%s: %v", when, err)
		}
	}
	if group := cpuGroup(d.t, d.helper.Process.Pid); group != d.home {
		d.t.Errorf("%s: the helper is in %s, not in %s", when, group, d.home)
	}
}

// killAgent has the undo helper put everything back.
func (d *indebted) killAgent() {
	d.t.Helper()
	helper := d.awaitUndoHelper(d.t)
	began := time.Now()
	d.kill()
	testkit.Eventually(d.t, func() error {
		if state(helper) != 0 {
			return fmt.Errorf("the undo helper, %d, is there", helper)
		}
		return nil
	})
	d.slowest = max(d.slowest, time.Since(began))
	d.checkUntouched("the agent was killed")
	d.start()
}

// killUndoHelper has the agent start another, which guards.
func (d *indebted) killUndoHelper() {
	d.t.Helper()
	helper := d.awaitUndoHelper(d.t)
	if err := unix.Kill(helper, unix.SIGKILL); err != nil {
		d.t.Fatal(err)
	}
	testkit.Eventually(d.t, func() error {
		if next := d.undoHelper(); next == 0 || next == helper {
			return fmt.Errorf("the undo helper is %d, after %d was killed", next, helper)
		}
		return nil
	})
}

// killBoth has the next agent put everything back before it serves.
func (d *indebted) killBoth() {
	d.t.Helper()
	helper := d.awaitUndoHelper(d.t)
	// In turn, that neither sees the other's end.
	for _, pid := range []int{d.cmd.Process.Pid, helper} {
		_ = unix.Kill(pid, unix.SIGSTOP)
	}
	_ = unix.Kill(helper, unix.SIGKILL)
	d.kill()
	d.start()
	d.checkUntouched("both were killed")
}
