package e2e

import (
	"fmt"
	"testing"

	"github.com/tsugiki/tsugiki/internal/sys/proc"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// onDemand asks the remote each time when there is /tmp/go, and makes no trapped call meanwhile.
const onDemand = `while :; do
	if [ -e /tmp/go ]; then
		wget -q -O - http://%s:%d/ >/tmp/new 2>&1; rm /tmp/go; mv /tmp/new /tmp/seen
	fi
	sleep 0.05
done`

// TestPoolIsKilled kills the process that holds the idle gates of an engine's containers, and its
// spare: with an agent, and while none runs. No container ends, and each makes new connections.
// "make soak" has it kill 100 times.
func TestPoolIsKilled(t *testing.T) {
	t.Parallel()
	n := newNode(t, engineCase{engine: "docker", none: true})
	observe(t, n.srv)
	pids := map[string]string{}
	for i := range 3 {
		name := fmt.Sprintf("idle-%d", i)
		c := n.container(name, "0.0.0.0/0", servedPort+i)
		c.Args = []string{"sh", "-c", fmt.Sprintf(onDemand, remoteAddr4, observerPort)}
		n.run(t, c)
		pids[name] = n.firstPID(t, name)
	}
	group := n.agent.pool(t)
	for _, agent := range []string{"with an agent", "without an agent"} {
		if agent == "without an agent" {
			n.agent.killAndForget()
		}
		for i := range testkit.Times(5, 50) {
			awaitIdle(t, group)
			killAll(t, group, []string{"tsugiki-pool", "tsugiki-spare"}[i%2])
		}
		awaitIdle(t, group)
		if agent == "without an agent" {
			n.agent.start()
		}
		for name, pid := range pids {
			if now := n.firstPID(t, name); now != pid {
				t.Errorf("%s: the first program of %s was %s and is %s", agent, name, pid, now)
			}
			n.connects(t, name)
		}
	}
	for name := range pids {
		n.remove(t, name)
	}
}

// firstPID is the id of the first program of one of Docker's containers, 0 if it has ended.
func (n *node) firstPID(t *testing.T, name string) string {
	t.Helper()
	return succeed(t, n.rig.Command(timeout(t), "docker", "inspect", "-f", "{{.State.Pid}}", name))
}

// connects has a container of onDemand connect to the remote.
func (n *node) connects(t *testing.T, name string) {
	t.Helper()
	n.exec(t, name, "sh", "-c", "rm -f /tmp/seen; echo >/tmp/go")
	var seen string
	testkit.Eventually(t, func() (err error) {
		seen, err = n.Exec(name, "cat", "/tmp/seen")
		return err
	})
	if seen != sourceAddr4+"\n" {
		t.Errorf("%s: wget says %q, not its source address", name, seen)
	}
}

// pool is the process group of the agent's gate pool.
func (d *daemon) pool(t *testing.T) int {
	t.Helper()
	pids, err := proc.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		if stat, err := proc.ReadStat(pid); err == nil && stat.Comm == "tsugiki-pool" && stat.Parent == d.cmd.Process.Pid {
			return pid
		}
	}
	t.Fatal("the agent has no gate pool")
	return 0
}

// awaitIdle waits until a pool and its spare are there, and none of their gates has a process.
func awaitIdle(t *testing.T, group int) {
	t.Helper()
	testkit.Eventually(t, func() error {
		pools, spares := testkit.Named(t, group, "tsugiki-pool"), testkit.Named(t, group, "tsugiki-spare")
		if gates := testkit.Named(t, group, "tsugiki-gate"); len(pools) != 1 || len(spares) != 1 || len(gates) > 0 {
			return fmt.Errorf("pools %v, spares %v, gates %v", pools, spares, gates)
		}
		return nil
	})
}

// killAll returns when the processes have ended. A second kill would otherwise end the spare while
// the pool only seems to be there, and nobody would be left.
func killAll(t *testing.T, group int, name string) {
	t.Helper()
	for _, pid := range testkit.Named(t, group, name) {
		testkit.Kill(t, pid)
	}
}
