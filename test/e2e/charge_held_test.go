package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
)

// heldCase is an engine, and how its containers are held: they print without end, and
// what reads that is charged to them by quota.
type heldCase struct {
	engine string
	config string   // below [charge]
	flags  []string // of its run
	prints []string // what its containers run
	group  string   // of a container, below the rig's; %s is its id
	source string   // of what they are held for
	again  bool     // it can restart them, and change their quota
}

var heldCases = []heldCase{
	{
		engine: "docker", config: `shared = ["dockerd"]`, flags: []string{"--log-opt", "max-size=10m"},
		// yes(1) has dockerd take all of a CPU while the container is not held.
		prints: []string{"sh", "-c", "while :; do echo y; done"},
		group:  "%s", source: "shared", again: true,
	},
	{ // else its logger would be placed
		engine: "ctr", config: "placement = false", flags: []string{"--log-uri", "binary://%s?agent=none&max-size=10m&max-file=2"},
		prints: []string{"yes"}, group: "%s", source: "logger",
	},
	{
		engine: "podman", flags: []string{"--log-driver", "k8s-file", "--log-opt", "max-size=10mb"},
		prints: []string{"yes"}, group: "libpod-%s", source: "monitor", again: true,
	},
}

// heldQuota is that of their containers, for the usual period: less than what they are
// held for takes on a busy machine.
const heldQuota = 5 * time.Millisecond

// holding is a node whose container is held most of the time.
type holding struct {
	*node
	heldCase
}

// TestChargeHeld has users work with containers that are held most of the time, by each
// engine.
func TestChargeHeld(t *testing.T) {
	t.Parallel()
	for _, c := range heldCases {
		t.Run(c.engine, func(t *testing.T) {
			t.Parallel()
			n := holding{newNode(t, engineCase{engine: c.engine, none: true}, "[charge]", `within = "%s"`, c.config), c}
			t.Run("exec", n.testExec)
			t.Run("pause", n.testPause)
			t.Run("kill", n.testKill)
			if c.again {
				t.Run("restart", n.testRestart)
				t.Run("update", n.testUpdate)
			}
			t.Run("end", n.testEnd)
		})
	}
}

// run runs one that prints without end, and waits until it is held.
func (n holding) run(t *testing.T, runtime string) *paying {
	t.Helper()
	var flags []string
	for _, f := range n.flags {
		flags = append(flags, strings.ReplaceAll(f, "%s", filepath.Join(filepath.Dir(tsugiki), "tsugiki-log")))
	}
	n.does(t, n.Run(engines.Container{
		Name: "yes", Runtime: runtime, None: true, CPUs: float64(heldQuota) / 1e8, Flags: flags, Args: n.prints,
	}))
	p := n.find(t)
	n.awaitHeld(t, p)
	return p
}

// find opens the cgroup of the container.
func (n holding) find(t *testing.T) *paying {
	t.Helper()
	id := "yes"
	if n.engine != "ctr" {
		id = n.ask(t, "inspect", "-f", "{{.Id}}", "yes")
	}
	p := n.node.group(t, fmt.Sprintf(n.heldCase.group, id))
	p.given.Quota = heldQuota // the agent may have lowered it
	return p
}

// awaitHeld waits until a container is held.
func (n holding) awaitHeld(t *testing.T, p *paying) {
	t.Helper()
	testkit.Eventually(t, func() error {
		if c := n.asked().account(t, p.Path()); c == nil || !c.Held.Now || borrowedFrom(c, n.source) == 0 {
			return fmt.Errorf("it is not held for its %s: %+v", n.source, c)
		}
		return nil
	})
}

func (n holding) awaitGone(t *testing.T, p *paying) {
	t.Helper()
	testkit.Eventually(t, func() error {
		if c := n.asked().account(t, p.Path()); c != nil {
			return fmt.Errorf("it still has an account: %+v", c)
		}
		return nil
	})
}

// does checks that the engine has done what it was asked to, for which it has a minute.
func (n holding) does(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// remove removes the container, after which the agent forgets it.
func (n holding) remove(t *testing.T, p *paying) {
	t.Helper()
	n.does(t, n.Remove("yes"))
	n.awaitGone(t, p)
}

func (n holding) hello(t *testing.T) {
	t.Helper()
	out, err := n.Exec("yes", "echo", "hello")
	n.does(t, err)
	if out != "hello\n" {
		t.Errorf("exec printed %q", out)
	}
}

// testExec executes programs in it; its runtime has it let go before.
func (n holding) testExec(t *testing.T) {
	p := n.run(t, "tsugiki")
	for range 3 {
		n.awaitHeld(t, p)
		n.hello(t)
	}
	// The runtime, which waits for the container, is no logger.
	if c := n.asked().account(t, p.Path()); n.source != "logger" && borrowedFrom(c, "logger") != 0 {
		t.Errorf("it is charged for a logger: %+v", c)
	}
	n.remove(t, p)
}

// pause pauses it. runc 1.1 freezes a group of v1 for a moment every 11 ms, 20 times, and does not
// see a program freeze that runs for 5 of 100 ms: it says so, and may be asked again.
func (n holding) pause(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, func() error {
		err := n.Pause("yes")
		if err != nil && !strings.Contains(err.Error(), "unable to freeze") {
			t.Fatal(err)
		}
		return err
	})
}

func (n holding) testPause(t *testing.T) {
	p := n.run(t, "tsugiki")
	for range 2 {
		n.awaitHeld(t, p)
		n.pause(t)
		// The agent's hold has ended; the pause has not. (charge/enforce says on its own clock
		// that it does not end later either.)
		testkit.Eventually(t, func() error {
			c := n.asked().account(t, p.Path())
			if frozen, err := p.frozen(); err != nil || !frozen {
				t.Fatalf("a paused container is frozen: %v, %v; %+v", frozen, err, c)
			}
			if c != nil && c.Held.Now {
				return fmt.Errorf("the agent holds a paused container: %+v", c)
			}
			return nil
		})
		n.does(t, n.Unpause("yes"))
		n.hello(t)
	}
	n.remove(t, p)
}

// testKill kills one, and removes one, which are held by then.
func (n holding) testKill(t *testing.T) {
	p := n.run(t, "")
	n.does(t, n.Kill("yes"))
	n.remove(t, p)
	p = n.run(t, "")
	n.remove(t, p)
}

func (n holding) testRestart(t *testing.T) {
	p := n.run(t, "")
	n.ask(t, "restart", "-t", "1", "yes")
	n.awaitHeld(t, p)
	n.ask(t, "stop", "-t", "1", "yes")
	n.ask(t, "start", "yes")
	n.awaitHeld(t, p)
	n.remove(t, p)
}

// testUpdate has a container's quota changed by its user: while it is held, while
// its quota is lowered, and while it owes nothing.
func (n holding) testUpdate(t *testing.T) {
	p := n.run(t, "")
	update := func(cpus float64) {
		t.Helper()
		n.ask(t, "update", "--cpus", fmt.Sprint(cpus), "yes")
		quota := time.Duration(cpus * float64(100*time.Millisecond))
		testkit.Eventually(t, func() error {
			if c := n.asked().account(t, p.Path()); c == nil || c.Before.QuotaUS != quota.Microseconds() {
				return fmt.Errorf("the account of the container with %v is %+v", quota, c)
			}
			return nil
		})
	}
	for _, cpus := range []float64{0.4, 0.1, 0.3} {
		update(cpus)
	}
	n.remove(t, p)
	// A fresh one, without debts.
	n.does(t, n.Run(engines.Container{
		Name: "yes", None: true, CPUs: 0.5, Flags: []string{"--log-driver", "none"}, Args: []string{"sleep", "1000"},
	}))
	p = n.find(t)
	if err := n.asked().client().Charge(p.Name, "test", time.Millisecond); err != nil {
		t.Fatal(err)
	}
	update(0.2)
	now, err := p.Limit()
	if err != nil {
		t.Fatal(err)
	}
	n.agent.stop()
	after, err := p.Limit()
	if err != nil || after.Quota != now.Quota || after.Burst != 0 {
		t.Errorf("the agent leaves %+v, %v", after, err)
	}
	n.does(t, n.Remove("yes"))
	n.agent.start()
}

// testEnd has the agent end while it holds a container.
func (n holding) testEnd(t *testing.T) {
	p := n.run(t, "")
	n.agent.stop()
	if err := p.untouched(); err != nil {
		t.Error(err)
	}
	n.does(t, n.Remove("yes"))
	n.agent.start()
}
