package gate

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// killAtStop has the pool killed at the nth point where it begins or ends a system call, in the
// round that do causes: from one wait for events to the next. It tells whether there is such a
// point; if not, the pool lives.
func (c *container) killAtStop(n int, do func()) (killed bool) {
	c.t.Helper()
	pid := c.poolPID(poolName)
	result, began := make(chan bool), make(chan struct{})
	go func() {
		runtime.LockOSThread() // only the thread that traces may give orders; it ends with the goroutine
		c.check(unix.PtraceSeize(pid))
		c.check(unix.PtraceInterrupt(pid))
		c.traced(pid)
		stops, waiting := 0, false
		for {
			c.check(unix.PtraceSyscall(pid, 0))
			if !waiting {
				close(began)
			}
			var regs unix.PtraceRegs
			c.traced(pid)
			c.check(unix.PtraceGetRegs(pid, &regs))
			waits := regs.Orig_rax == unix.SYS_EPOLL_WAIT || regs.Orig_rax == unix.SYS_EPOLL_PWAIT
			waiting = true
			if waits && int64(regs.Rax) != 1 && stops == 0 {
				continue // it begins to wait, or is interrupted
			}
			if waits && stops > 0 {
				c.check(unix.PtraceDetach(pid))
				result <- false
				return
			}
			if stops++; stops == n {
				c.check(unix.Kill(pid, unix.SIGKILL))
				result <- true
				return
			}
		}
	}()
	<-began
	do()
	return <-result
}

// check is must for other goroutines than the test's.
func (c *container) check(err error) {
	if err != nil {
		c.t.Error(err)
		panic(err)
	}
}

// traced waits until a process that this thread traces has stopped.
func (c *container) traced(pid int) {
	var status unix.WaitStatus
	_, err := unix.Wait4(pid, &status, unix.WALL, nil)
	if err == nil && !status.Stopped() {
		err = fmt.Errorf("process %d: status %#x, want it stopped", pid, status)
	}
	c.check(err)
}

// atEachCall kills the pool at the first point in the round that do causes, at the second one of
// another, and so on. before makes do possible again, after checks what has become of it.
func (c *container) atEachCall(before, do, after func()) {
	c.t.Helper()
	points := 0
	for killed := true; killed; {
		before()
		if killed = c.killAtStop(points+1, do); killed {
			points++
		}
		after()
	}
	if points < 4 {
		c.t.Errorf("killed at %d points: there are more", points)
	}
	c.t.Logf("killed at %d points", points)
}

// The pool may be killed at any point: when it starts a gate's process, when it gets the gate back,
// and when a container comes.
func TestPoolIsKilledAtEachCall(t *testing.T) {
	c := newContainer(t)
	c.idleAfter = 0
	g := c.start(1, nil)
	serve(c, g, nil)
	idle := func() {
		c.quiet(true)
		c.exits()
	}
	works := func() {
		c.quiet(false)
		c.moves("own", &c.progress.own, 1)
		c.moves("asked", &c.progress.asked, 1)
	}
	works()
	c.atEachCall(idle, func() { c.quiet(false) }, works)
	c.atEachCall(works, func() { c.quiet(true) }, works)
	idle()
	var other *Gate
	c.atEachCall(func() {}, func() {
		var err error
		other, err = Start(c.config(c.listener, func(config *Config) { config.AdoptSocket += "-other" }))
		c.must(err)
	}, func() {
		c.must(other.SetRules(c.rules))
		if _, err := os.Stat(c.adoptSocket + "-other"); err != nil {
			t.Errorf("its adoption socket: %v", err)
		}
		c.must(other.Close())
		c.exits()
	})
	works()
	idle()
	after := c.counted(g)
	checkSums(t, c, &after.Stats)
	c.allRight()
	c.must(c.group.Kill())
	c.must(g.Close())
}

// Nor is the end of a container lost, and what was kept of it goes.
func TestPoolIsKilledAtAnEnd(t *testing.T) {
	for point, killed := 1, true; killed; point++ {
		c := newContainer(t)
		c.idleAfter = 0
		g := c.start(1, nil)
		ended := serve(c, g, nil)
		c.moves("asked", &c.progress.asked, 1)
		c.quiet(true)
		c.exits()
		c.releaseListener()
		killed = c.killAtStop(point, func() { c.must(c.programs.Kill()) })
		<-ended
		if !g.EndedWell() {
			t.Errorf("killed at point %d, the gate did not say good-bye", point)
		}
		c.must(g.Close())
		c.must(c.pool.Close())
		c.eventually("pool and spare end", func() bool { return len(c.poolPIDs(poolName))+len(c.poolPIDs(spareName)) == 0 })
		t.Logf("point %d: killed %v", point, killed)
	}
}
