package gate

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// killAtStop has the pool killed at the nth point where it begins or ends a system call, in the
// round that do causes: from one wait for events to the next. It tells whether there is such a
// point; if not, the pool lives. A killed pool has ended when killAtStop returns.
func (c *container) killAtStop(n int, do func()) (killed bool) {
	c.t.Helper()
	pid := c.poolPID(poolName)
	testkit.Settle(c.t, pid) // or the end of the last round's work counts as this round's
	began, result := make(chan struct{}), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // only the thread that traces may give orders; it ends with the goroutine
		begins := sync.OnceFunc(func() { close(began) })
		defer begins()
		var err error
		killed, err = traceAndKill(pid, n, begins)
		result <- err
	}()
	<-began
	do()
	c.must(<-result)
	return killed
}

// traceAndKill kills a pool at its nth stop, and calls begins once the pool goes on until it stops.
// This thread traces the pool.
func traceAndKill(pid, n int, begins func()) (killed bool, err error) {
	if err := unix.PtraceSeize(pid); err != nil {
		return false, fmt.Errorf("trace process %d: %w", pid, err)
	}
	if err := unix.PtraceInterrupt(pid); err != nil {
		return false, fmt.Errorf("interrupt process %d: %w", pid, err)
	}
	if err := awaitStop(pid); err != nil {
		return false, err
	}
	for stops := 0; stops < n; {
		if err := unix.PtraceSyscall(pid, 0); err != nil {
			return false, fmt.Errorf("let process %d go on: %w", pid, err)
		}
		begins()
		if err := awaitStop(pid); err != nil {
			return false, err
		}
		var regs unix.PtraceRegs
		if err := unix.PtraceGetRegs(pid, &regs); err != nil {
			return false, fmt.Errorf("read registers of process %d: %w", pid, err)
		}
		waits := regs.Orig_rax == unix.SYS_EPOLL_WAIT || regs.Orig_rax == unix.SYS_EPOLL_PWAIT
		if waits && int64(regs.Rax) != 1 && stops == 0 {
			continue // it begins to wait, or is interrupted
		}
		if waits && stops > 0 {
			return false, unix.PtraceDetach(pid)
		}
		stops++
	}
	return true, killTracee(pid)
}

// awaitStop waits until a process that this thread traces has stopped.
func awaitStop(pid int) error {
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, unix.WALL, nil); err != nil {
		return fmt.Errorf("await stop of process %d: %w", pid, err)
	}
	if !status.Stopped() {
		return fmt.Errorf("process %d: status %#x, want it stopped", pid, status)
	}
	return nil
}

// killTracee ends a process that this thread traces, and waits for that: kill(2) alone returns while
// the process may still do things. Its parent hears of the end once the tracer has. Before Linux 5.19
// (kernel commit 2500ad1c7fa4) a killed process can stop once more on its way, at the end of its system
// call. It goes on from there by itself.
func killTracee(pid int) error {
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	for {
		var status unix.WaitStatus
		_, err := unix.Wait4(pid, &status, unix.WALL, nil)
		if errors.Is(err, unix.ECHILD) { // the first pool is our child, and its waiter was faster
			return nil
		}
		if err != nil {
			return fmt.Errorf("await end of process %d: %w", pid, err)
		}
		if status.Signaled() {
			return nil
		}
		if !status.Stopped() {
			return fmt.Errorf("process %d: status %#x, want it killed", pid, status)
		}
	}
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
