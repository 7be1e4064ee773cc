package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// TestAgentIsAway has engines do what they do with a container while no agent runs.
func TestAgentIsAway(t *testing.T) {
	t.Parallel()
	for _, c := range []engineCase{{engine: "docker", none: true}, {engine: "podman", none: true, redis: true}} {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, c)
			n.run(t, n.container("web", "0.0.0.0/0", servedPort))
			n.checkServed(t, "web", servedPort)
			for _, leave := range []struct {
				name string
				do   func()
			}{{"killed", n.agent.killAndForget}, {"stopped", n.agent.stop}} {
				t.Run(leave.name, func(t *testing.T) {
					away := func(do func(*testing.T, *node)) func(*testing.T) {
						return func(t *testing.T) {
							leave.do()
							do(t, n)
						}
					}
					t.Run("exec", away(testAwayExec))
					t.Run("restart", away(testAwayRestart))
					t.Run("stop", away(testAwayStop))
					t.Run("show", away(testAwayShow))
				})
			}
			n.remove(t, "web")
		})
	}
	t.Run("always", testAwayAlways)
}

// killAndForget kills the agent. What is logged by then, its undo helper included, is no fault of it.
func (d *daemon) killAndForget() {
	d.kill()
	d.log = &syncBuffer{}
}

// testAwayExec executes programs that need no decision, and one that waits for it.
func testAwayExec(t *testing.T, n *node) {
	o := observe(t, n.srv)
	type result struct {
		out string
		err error
	}
	asks := make(chan result, 1)
	go func() {
		out, err := n.Exec("web", "sh", "-c", fmt.Sprintf("echo begun >/tmp/begun; wget -q -O - http://%s:%d/", remoteAddr4, observerPort))
		asks <- result{out, err}
	}()
	testkit.Eventually(t, func() error {
		out, err := n.Exec("web", "cat", "/tmp/begun")
		if err == nil && out != "begun\n" {
			err = fmt.Errorf("cat printed %q", out)
		}
		return err
	})
	if seen := o.take(); len(seen) > 0 || len(asks) > 0 {
		t.Errorf("without an agent: the remote sees %q, %d programs have ended", seen, len(asks))
	}
	n.agent.start()
	if r := <-asks; r.err != nil || r.out != sourceAddr4+"\n" {
		t.Errorf("the remote sees %q, %v", r.out, r.err)
	}
	checkAllFrom(t, o.take(), sourceAddr4)
	n.exec(t, "web", "rm", "/tmp/begun")
	n.checkServed(t, "web", servedPort)
}

// testAwayRestart stops the container and starts it twice. It serves when the agent is back.
func testAwayRestart(t *testing.T, n *node) {
	n.again(t, "without an agent")
	// The program waits for an agent now, and may not hear that it is to end (docs/LIMITS.md, "The agent").
	if err := errors.Join(n.Stop("web"), n.Start("web")); err != nil {
		t.Fatal(err)
	}
	n.agent.start()
	n.checkServed(t, "web", servedPort)
	if n.known(t, "web") == "" {
		t.Error("the agent does not know the container")
	}
	// And it is one like any other.
	n.again(t, "with an agent")
	n.checkServed(t, "web", servedPort)
}

// again stops the container and starts it, and logs how long that has taken.
func (n *node) again(t *testing.T, how string) {
	t.Helper()
	began := time.Now()
	// The program ends by itself: the engine kills it after an hour only.
	if _, err := n.inRig(n.engine, "stop", "-t", "3600", "web"); err != nil {
		t.Fatal(err)
	}
	stopped := time.Since(began)
	if err := n.Start("web"); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: stopped in %v, started in %v", how, stopped.Round(time.Millisecond), (time.Since(began) - stopped).Round(time.Millisecond))
}

// testAwayStop stops the container, which stays stopped, and starts it with the next agent.
func testAwayStop(t *testing.T, n *node) {
	if err := n.Stop("web"); err != nil {
		t.Fatal(err)
	}
	n.agent.start()
	n.waitForgotten(t, "web")
	n.checkRefused(t, servedPort)
	if err := n.Start("web"); err != nil {
		t.Fatal(err)
	}
	n.checkServed(t, "web", servedPort)
}

func testAwayShow(t *testing.T, n *node) {
	r := try(t, command(t, n.h, tsugiki, "graft", "show", "--run-dir", n.agent.run, "for", "web"))
	if r.err == nil || !strings.Contains(r.stderr, "agent is not running") || strings.Contains(r.stderr, "web is not running") {
		t.Errorf("tsugiki graft show: %v: %s", r.err, r.stderr)
	}
	n.agent.start()
}

// testAwayAlways has the first program of a container end that its engine starts again.
func testAwayAlways(t *testing.T) {
	t.Parallel()
	n := newNode(t, engineCase{engine: "docker", none: true})
	c := n.container("web", "0.0.0.0/0", servedPort)
	c.Flags = []string{"--restart", "always", "--health-cmd", "cat /etc/passwd", "--health-interval", "100ms", "--health-start-period", "1s"}
	n.run(t, c)
	n.checkServed(t, "web", servedPort)
	inspect := func(what string) string {
		return succeed(t, n.rig.Command(timeout(t), "docker", "inspect", "-f", "{{."+what+"}}", "web"))
	}
	for _, leave := range []func(){n.agent.killAndForget, n.agent.stop} {
		count := inspect("RestartCount")
		leave()
		checkHealth(t, inspect)
		var pid int
		if _, err := fmt.Sscan(inspect("State.Pid"), &pid); err != nil || pid == 0 {
			t.Fatal(pid, err)
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, func() error {
			// Docker counts before it starts the container.
			if inspect("RestartCount") == count {
				return errors.New("Docker has not noticed the end")
			}
			if state := inspect("State.Status"); state != "running\n" {
				return fmt.Errorf("the container is %s", state)
			}
			return nil
		})
		n.agent.start()
		n.checkServed(t, "web", servedPort)
	}
	n.remove(t, "web")
}

// checkHealth waits until Docker has executed its health check twice more, and checks that the
// container is well. A check before them may have failed: it ran when the container's first program
// was killed.
func checkHealth(t *testing.T, inspect func(string) string) {
	t.Helper()
	type healthCheck struct {
		Start    time.Time
		ExitCode int
		Output   string
	}
	checks := func() (log []healthCheck) {
		if err := json.Unmarshal([]byte(inspect("State.Health.Log | json")), &log); err != nil {
			t.Fatal(err)
		}
		return log
	}
	var before time.Time
	if log := checks(); len(log) > 0 {
		before = log[len(log)-1].Start
	}
	last := before
	for range 2 {
		testkit.Eventually(t, func() error {
			for _, check := range checks() {
				if check.Start.After(before) && check.ExitCode != 0 {
					t.Fatalf("health check: %d, %s", check.ExitCode, check.Output)
				}
				if check.Start.After(last) {
					last = check.Start
					return nil
				}
			}
			return errors.New("no other health check")
		})
	}
}
