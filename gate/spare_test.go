package gate

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// The names of the two processes of a pool.
const (
	poolName  = "tsugiki-pool"
	spareName = "tsugiki-spare"
)

func (c *container) poolPIDs(name string) []int {
	c.t.Helper()
	return testkit.Named(c.t, c.pool.group, name)
}

// poolPID waits until both processes are there, and returns one of them.
func (c *container) poolPID(name string) (pid int) {
	c.t.Helper()
	c.eventually(poolName+" and "+spareName, func() bool {
		pools, spares := c.poolPIDs(poolName), c.poolPIDs(spareName)
		if len(pools) != 1 || len(spares) != 1 {
			return false
		}
		pid = pools[0]
		if name == spareName {
			pid = spares[0]
		}
		return true
	})
	return pid
}

// killPoolAndSpare ends both, so that nobody goes on: stopped, neither sees the other's end. The pool
// is the last: with its end the kernel has stopped processes of its group go on, which is orphaned
// then (setpgid(2)).
func (c *container) killPoolAndSpare() {
	c.t.Helper()
	pids := []int{c.poolPID(spareName), c.poolPID(poolName)}
	for _, signal := range []unix.Signal{unix.SIGSTOP, unix.SIGKILL} {
		for _, pid := range pids {
			c.must(unix.Kill(pid, signal))
		}
	}
	c.eventually("pool and spare end", func() bool { return len(c.poolPIDs(poolName))+len(c.poolPIDs(spareName)) == 0 })
}

// No container ends with one process that holds idle gates, whoever is killed how often, and
// nothing is lost.
func TestPoolIsKilled(t *testing.T) {
	c := newContainer(t)
	c.idleAfter = 0
	g := c.start(2, nil)
	ended := serve(c, g, nil)
	first := c.poolPID(poolName)
	for _, name := range []string{poolName, spareName} {
		for range testkit.Times(5, 50) {
			c.quiet(true)
			c.exits()
			testkit.Kill(c.t, c.poolPID(name))
			c.poolPID(name)
			if c.pool.Ended() {
				t.Fatal("the pool has ended")
			}
			c.quiet(false)
			c.moves("asked", &c.progress.asked, 3)
			c.moves("own", &c.progress.own, 3)
			testkit.Kill(c.t, c.poolPID(name)) // with the gate at work
		}
	}
	if c.poolPID(poolName) == first {
		t.Error("the pool was not killed")
	}
	c.quiet(true)
	c.exits()
	after := c.counted(g)
	checkSums(t, c, &after.Stats)
	c.allRight()
	c.must(c.programs.Kill())
	<-ended
	if !g.EndedWell() {
		t.Error("the gate did not say good-bye")
	}
	c.must(g.Close())
}
