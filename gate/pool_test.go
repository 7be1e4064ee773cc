package gate

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// exits waits until no process is where gates are.
func (c *container) exits() {
	c.t.Helper()
	c.eventually("no process", func() bool {
		procs, err := os.ReadFile(filepath.Join(c.keepers.Path(), "cgroup.procs"))
		return err == nil && len(procs) == 0
	})
}

// quiet has the program make no calls, and waits until none is under way; or make calls.
func (c *container) quiet(is bool) {
	c.t.Helper()
	if !is {
		c.progress.quiet.Store(0)
		return
	}
	c.hush()
	c.eventually("no call", func() bool { return c.progress.idle.Load() == c.threads })
}

// hush is quiet for calls that wait.
func (c *container) hush() { c.progress.quiet.Store(1) }

// An idle gate has no process, and is the same as before when there is
// something: a call, an order, a supervisor, the end.
func TestIdle(t *testing.T) {
	testkit.CheckLeaks(t)
	c := newContainer(t)
	c.idleAfter = 100 * time.Millisecond
	g := c.start(2, nil)
	ended := serve(c, g, nil)
	c.moves("asked", &c.progress.asked, 10)
	c.quiet(true)
	c.exits()
	before := c.counted(g)
	if len(c.gatePIDs()) != 0 {
		t.Error("to be asked what it has counted has woken it")
	}
	checkSums(t, c, &before.Stats)

	c.quiet(false)
	c.moves("asked", &c.progress.asked, 100)
	c.moves("own", &c.progress.own, 110)
	c.gatePID()
	c.quiet(true)
	c.exits()
	after := c.counted(g)
	checkStats(t, &before, &after)
	checkSums(t, c, &after.Stats)

	// What an order sets stays set.
	g.SetTraced(true)
	c.must(g.SetRules(c.rules))
	c.exits()
	g.SetTraced(false)
	c.exits()
	c.quiet(false)
	c.moves("own", &c.progress.own, 10)
	c.quiet(true)
	c.exits()
	c.allRight()
	c.must(c.programs.Kill())
	<-ended
	if !g.EndedWell() {
		t.Error("it did not say good-bye")
	}
	last := c.stats(g)
	checkSums(t, c, &last)
	c.must(g.Close())
}

// checkSums checks that nothing that was counted is lost with a process.
func checkSums(t *testing.T, c *container, s *Stats) {
	t.Helper()
	if own, counted := c.progress.own.Load(), s.Calls[Connect].Answered; own != counted {
		t.Errorf("the program has connected %d times, the gate has counted %d", own, counted)
	}
	if asked, counted := c.progress.asked.Load(), s.Calls[Bind].Passed; asked != counted {
		t.Errorf("the program has bound %d times, the gate has counted %d", asked, counted)
	}
}

// A gate without a supervisor can be idle too.
func TestIdleWithoutSupervisor(t *testing.T) {
	c := newContainer(t)
	c.idleAfter = 100 * time.Millisecond
	journal := filepath.Join(c.dir, "journal")
	g := c.start(2, nil)
	c.quiet(true)
	c.exits()
	c.must(g.Release())
	c.releaseListener()
	c.must(c.pool.Close())
	c.quiet(false)
	c.moves("own", &c.progress.own, 10)
	c.hush()
	// Two calls wait for a supervisor, so it does not exit.
	h := c.helper(c.top.Host, "answer", journal)
	h.says("adopted")
	c.exits()
	h.kill()
	c.helper(c.top.Remote, "answer", journal).says("refused")
	c.exits()
	h = c.helper(c.top.Host, "answer", journal)
	h.says("adopted")
	c.helper(c.top.Host, "answer", journal).says("taken")
	c.quiet(false)
	c.moves("asked", &c.progress.asked, 10)
	c.quiet(true)
	c.exits()
	c.allRight()
	c.must(c.programs.Kill())
	h.says("ended true")
	c.helper(c.top.Host, "answer", journal).says("gone")
	c.eventually("a pool without agent and gates ends", func() bool { return len(c.poolPIDs(poolName)) == 0 && len(c.poolPIDs(spareName)) == 0 })
}

// Whoever is killed takes with it what it held, and its supervisor knows.
func TestIdleKilled(t *testing.T) {
	const idle, working = "pool and spare with the gate idle", "pool and spare with the gate at work"
	for _, who := range []string{"gate", idle, working} {
		t.Run(who, func(t *testing.T) {
			c := newContainer(t)
			c.idleAfter = 100 * time.Millisecond
			g := c.start(1, nil)
			ended := serve(c, g, nil)
			c.moves("asked", &c.progress.asked, 10)
			if who != working {
				c.quiet(true)
				c.exits()
			}
			if who == "gate" {
				g.SetTraced(true)
				c.must(unix.Kill(c.gatePID(), unix.SIGKILL))
			} else {
				c.killPoolAndSpare()
			}
			if who == working {
				c.moves("asked", &c.progress.asked, 10)
				c.quiet(true)
				// It cannot exit any more, and goes on.
				c.triesToExit(3)
				c.quiet(false)
				c.moves("asked", &c.progress.asked, 10)
				c.moves("own", &c.progress.own, 10)
				c.allRight()
				c.must(c.programs.Kill())
			}
			<-ended
			if well := g.EndedWell(); well != (who == working) {
				t.Errorf("it ended well: %v", well)
			}
			if _, err := g.Stats(); err != nil && !errors.Is(err, io.EOF) {
				t.Error(err)
			}
			c.must(g.Close())
			if _, err := os.Stat(c.adoptSocket); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the adoption socket after Close: %v", err)
			}
		})
	}
}

// gatePID waits for the gate's process: where its callers get no CPU for a while, it exits as idle.
func (c *container) gatePID() int {
	c.t.Helper()
	var pids []int
	c.eventually("one process of a gate", func() bool {
		pids = c.gatePIDs()
		return len(pids) == 1
	})
	return pids[0]
}

func (c *container) gatePIDs() (list []int) {
	procs, err := os.ReadFile(filepath.Join(c.keepers.Path(), "cgroup.procs"))
	c.must(err)
	for _, word := range strings.Fields(string(procs)) {
		var pid int
		_, err := fmt.Sscan(word, &pid)
		c.must(err)
		list = append(list, pid)
	}
	return list
}

// triesToExit waits until the gate has tried to exit, and could not: it has another thread
// after each try.
func (c *container) triesToExit(times int) {
	c.t.Helper()
	pid := c.gatePID()
	last := ""
	c.eventually("tries to exit", func() bool {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		c.must(err)
		tasks = slices.DeleteFunc(tasks, func(path string) bool { return filepath.Base(path) == fmt.Sprint(pid) })
		if len(tasks) == 1 && tasks[0] != last {
			last = tasks[0]
			times-- // the first one seen is not new
		}
		return times < 0
	})
}

// aboutToHandOver waits until the gate has stopped, which it does when nobody serves any more and
// it has not yet handed over what it holds.
func (c *container) aboutToHandOver() {
	c.t.Helper()
	c.eventually("about to hand over", func() bool {
		pids := c.gatePIDs()
		return len(pids) == 1 && stopped(pids[0])
	})
}

func stopped(pid int) bool {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(state, "T")
}

// goOn lets a gate go on that is about to hand over.
func (c *container) goOn() {
	for _, pid := range c.gatePIDs() {
		if stopped(pid) {
			_ = unix.Kill(pid, unix.SIGCONT) // or it has ended
		}
	}
}

// called waits until a call waits for whoever has the listener.
func (c *container) called() {
	c.t.Helper()
	c.eventually("a call waits", func() bool {
		fds := []unix.PollFd{{Fd: int32(c.listener.Fd()), Events: unix.POLLIN}}
		n, _ := unix.Poll(fds, 0)
		return n > 0 && fds[0].Revents == unix.POLLIN
	})
}

// answers waits for calls of both kinds. The gate is never about to hand over for long.
func (c *container) answers() {
	c.t.Helper()
	c.quiet(false)
	asked, own := c.progress.asked.Load()+2, c.progress.own.Load()+2 // of each, one may have been on its way
	c.eventually("answers", func() bool {
		c.goOn()
		return c.progress.asked.Load() >= asked && c.progress.own.Load() >= own
	})
}

// A call or an order that comes when its gate is about to hand over, or has just exited, is answered
// like any other, and a call is asked about once.
func TestIdleLosesNothing(t *testing.T) {
	c := newContainer(t)
	c.idleAfter, c.flags = 0, []string{"--stop-before-handover"}
	g := c.start(1, nil)
	ended := serve(c, g, nil)
	calls := func() {
		c.quiet(false)
		c.called()
	}
	order := func() { c.must(g.tell(opStats, 0)) }
	c.answers()
	for range 2 {
		for _, come := range [][]func(){{}, {calls}, {order}, {calls, order}, {order, calls}} {
			for _, handedOver := range []bool{false, true} {
				c.hush()
				c.aboutToHandOver()
				if handedOver {
					c.must(unix.Kill(c.pool.group, unix.SIGSTOP))
					c.goOn()
					c.exits()
				}
				for _, f := range come {
					f()
				}
				c.goOn()
				c.must(unix.Kill(c.pool.group, unix.SIGCONT))
				c.answers()
			}
		}
	}
	c.progress.stop.Store(1)
	c.eventually("no call hangs", func() bool {
		c.goOn()
		select {
		case <-c.ended:
			return true
		default:
			return false
		}
	})
	c.eventually("end", func() bool {
		c.goOn()
		return len(ended) > 0
	})
	c.allRight()
	last := c.stats(g)
	checkSums(t, c, &last)
	c.must(g.Close())
}

// A pool refuses what is no admission, and a gate that cannot start; its other gates go on.
func TestPoolRefuses(t *testing.T) {
	c := newContainer(t)
	g := c.start(1, nil)
	c.moves("own", &c.progress.own, 1)
	for _, message := range [][]byte{{1}, make([]byte, 40), make([]byte, 400), encodeAdmission(Config{Own: c.own})} {
		c.must(c.pool.send(message))
		c.must(c.pool.send(message, os.Stdin, os.Stdin, os.Stdin))
	}
	config := c.config(c.listener, func(config *Config) {
		config.AdoptSocket += "-other"
		config.CgroupDir = os.Stdin
	})
	if _, err := Start(config); err == nil || !strings.Contains(err.Error(), "start gate: ") {
		t.Errorf("start in what is no cgroup: %v", err)
	}
	if _, err := os.Stat(config.AdoptSocket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the adoption socket of a gate that was not started: %v", err)
	}
	c.moves("own", &c.progress.own, 10)
	if c.pool.Ended() {
		t.Error("the pool has ended")
	}
	c.must(c.group.Kill())
	c.must(g.Close())
}

// BenchmarkWake is how long socket(2) takes that wakes its gate, and one right after it.
func BenchmarkWake(b *testing.B) {
	c := newContainer(b)
	c.idleAfter = 0
	g := c.start(0, nil)
	serve(c, g, nil)
	var wakes, others []float64
	took := func(list *[]float64) {
		want := c.progress.own.Load() + 1
		c.progress.once.Store(1)
		c.eventually("own", func() bool { return c.progress.own.Load() >= want })
		*list = append(*list, float64(c.progress.took.Load())/1000)
	}
	c.quiet(true)
	for b.Loop() {
		c.exits()
		took(&wakes)
		took(&others)
	}
	slices.Sort(wakes)
	slices.Sort(others)
	b.ReportMetric(wakes[len(wakes)/2], "µs/wake")
	b.ReportMetric(others[len(others)/2], "µs/call")
	c.must(c.group.Kill())
	c.must(g.Close())
}

// A container may end before its gate, or who keeps that, has read what the supervisor asked
// for: the good-bye arrives all the same.
func TestEndWithOrderUnread(t *testing.T) {
	for _, idle := range []bool{true, false} {
		t.Run(fmt.Sprintf("idle %v", idle), func(t *testing.T) {
			c := newContainer(t)
			c.idleAfter = IdleAfter
			if idle {
				c.idleAfter = 0
			}
			g := c.start(1, nil)
			ended := serve(c, g, nil)
			c.moves("asked", &c.progress.asked, 10)
			stopped := c.pool.group
			if idle {
				c.quiet(true)
				c.exits()
			} else {
				stopped = c.gatePID()
			}
			c.must(unix.Kill(stopped, unix.SIGSTOP))
			c.must(g.tell(opStats, 0))
			c.must(c.programs.Kill())
			<-c.ended
			c.must(unix.Kill(stopped, unix.SIGCONT))
			if err := <-ended; !errors.Is(err, ErrEnded) {
				t.Errorf("it ended with %v, want %v", err, ErrEnded)
			}
			if !g.EndedWell() {
				t.Error("its good-bye did not arrive")
			}
			if last := c.stats(g); last.Calls[Bind].Passed < 10 {
				t.Errorf("its last words are %+v", last.Calls[Bind])
			}
			c.must(g.Close())
		})
	}
}

// A pool takes no more gates than can be idle at once: what they hand over has to find room.
func TestPoolIsFull(t *testing.T) {
	c := newContainer(t)
	c.idleAfter = 0
	g := c.start(1, nil)
	ended := serve(c, g, nil)
	c.moves("asked", &c.progress.asked, 1)
	limit := unix.Rlimit{Cur: 40, Max: 40} // one needs 39
	c.must(unix.Prlimit(c.pool.group, unix.RLIMIT_NOFILE, &limit, nil))
	_, err := Start(c.config(c.listener, func(config *Config) { config.AdoptSocket += "-other" }))
	if err == nil || !strings.Contains(err.Error(), "keep gate: ") {
		t.Errorf("start of one more: %v", err)
	}
	c.quiet(true)
	c.exits()
	c.quiet(false)
	c.moves("asked", &c.progress.asked, 10)
	c.allRight()
	c.must(c.programs.Kill())
	<-ended
	c.must(g.Close())
}
