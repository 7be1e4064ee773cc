package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Whichever way a container ends, nothing is left of it. The program has two
// daemons that ignore every signal that can be ignored, with a connection each.
func TestLifecycleLeavesNothing(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	signal := func(sig unix.Signal) func(c *container) {
		return func(c *container) { _ = unix.Kill(c.program(), sig) }
	}
	for _, tt := range []struct {
		name string
		end  func(c *container)
		// swept: what was killed leaves an empty cgroup and its note, which
		// the next start removes.
		swept bool
	}{
		{"the program ends", func(c *container) { _ = c.stdin.Close() }, false},
		{"the program is killed", signal(unix.SIGKILL), false},
		{"the program gets SIGTERM", signal(unix.SIGTERM), false},
		{"the program gets SIGINT", signal(unix.SIGINT), false},
		{"tsugiki gets SIGTERM", func(c *container) { _ = c.Process.Signal(unix.SIGTERM) }, false},
		{"tsugiki gets SIGINT", func(c *container) { _ = c.Process.Signal(unix.SIGINT) }, false},
		{"tsugiki is killed", func(c *container) { _ = c.Process.Kill() }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newContainer(t, a.Host, withIngress(), "ready", attackProgram(t, "static"), "family", allowed4.String())
			tt.end(c)
			c.waitEnd(t)
			if tt.swept {
				testkit.Eventually(t, func() error { return c.dead(t) })
				c.sweep(t)
			}
			testkit.Eventually(t, func() error { return c.gone(t) })
		})
	}
}

// Killed together with those who would have killed the rest: what goes on is cut
// off from the host, and goes at the next start.
func TestLifecycleKilledTogether(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	c := newContainer(t, a.Host, withIngress(), "ready", attackProgram(t, "static"), "family", allowed4.String())
	supervisor := c.Process.Pid
	for _, pid := range c.helpers() {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	testkit.Kill(t, supervisor) // its last thread has the lock of the name
	// Its daemons may still have its standard output.
	_ = c.Process.Release()
	c.sweep(t)
	testkit.Eventually(t, func() error { return c.gone(t) })
}

// A start that fails, at any step, leaves nothing.
func TestLifecycleFailedStart(t *testing.T) {
	t.Parallel()
	top := testkit.Build(t, testkit.Options{NoRemote: true})
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no program\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	name, dir := uniqueName("fail"), t.TempDir()
	for _, args := range [][]string{
		{"--", text},
		{"--netns", "/no/such/namespace", "--", "true"},
		{"--endpoint", "x type ipv4 addr 203.0.113.5 port 1", "-e", "0.0.0.0/0=x", "--", "true"},
	} {
		before := socketsOf(t, top.Host)
		r := try(t, command(t, top.Host, tsugiki, append([]string{"run", "--run-dir", dir, "--name", name}, args...)...))
		if status := exitStatus(r.err); status == 0 {
			t.Errorf("%v: no error", args)
		}
		if _, err := os.Stat(filepath.Join(ownCgroup(t), "tsugiki-"+name)); err == nil {
			t.Errorf("%v: the cgroup is there", args)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%v: run directory: %v %v", args, left, err)
		}
		testkit.Eventually(t, func() error {
			if n := socketsOf(t, top.Host); n > before {
				return fmt.Errorf("%v: the host has %d sockets, had %d", args, n, before)
			}
			return nil
		})
	}
}

// interruptedWithin is more than a start takes.
const interruptedWithin = 120 * time.Millisecond

// A start that is interrupted, at whatever moment, leaves nothing.
func TestLifecycleInterruptedStart(t *testing.T) {
	t.Parallel()
	top := testkit.Build(t, testkit.Options{NoRemote: true})
	dir := t.TempDir()
	times := testkit.Times(8, 60)
	for i := range times {
		name := uniqueName("interrupted")
		c := command(t, top.Host, tsugiki, "run", "--run-dir", dir, "--name", name, "--endpoint", outEndpoint, "-e", "0.0.0.0/0=out", "--", "sleep", "30")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		after := time.Duration(i) * interruptedWithin / time.Duration(times)
		time.Sleep(after)
		_ = c.Process.Signal([]os.Signal{unix.SIGTERM, unix.SIGINT}[i%2])
		_ = c.Wait() // by the signal
		left, _ := os.ReadDir(dir)
		_, err := os.Stat(filepath.Join(ownCgroup(t), "tsugiki-"+name))
		if len(left) > 0 || err == nil {
			t.Errorf("interrupted after %v: left in the run directory %v, cgroup is there: %v", after, left, err == nil)
			break
		}
	}
	succeed(t, command(t, top.Host, tsugiki, "run", "--run-dir", dir, "--", "true"))
}

// The status of a program that a signal has ended is what a shell sees without
// tsugiki, and nothing is printed about it.
func TestLifecycleEndedBySignal(t *testing.T) {
	t.Parallel()
	top := testkit.Build(t, testkit.Options{NoRemote: true})
	for _, sig := range []unix.Signal{
		unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGILL, unix.SIGTRAP, unix.SIGABRT, unix.SIGBUS, unix.SIGFPE,
		unix.SIGKILL, unix.SIGUSR1, unix.SIGSEGV, unix.SIGUSR2, unix.SIGPIPE, unix.SIGALRM, unix.SIGTERM, unix.SIGXCPU,
		unix.SIGXFSZ, unix.SIGVTALRM, unix.SIGPROF, unix.SIGIO, unix.SIGPWR, unix.SIGSYS, unix.Signal(40), unix.Signal(64),
	} {
		t.Run(strconv.Itoa(int(sig)), func(t *testing.T) {
			t.Parallel()
			c := graft(t, top.Host, "-e", "203.0.113.9=0.0.0.0", "--", "sh", "-c", fmt.Sprintf("ulimit -c 0; kill -%d $$; sleep 1", sig))
			timer := time.AfterFunc(testkit.Patience, func() { _ = c.Process.Kill() })
			defer timer.Stop()
			r := try(t, c)
			if got := signalOf(r.err); got != sig {
				t.Errorf("tsugiki ended with %v, want signal %v", r.err, sig)
			}
			if r.stdout != "" || r.stderr != "" {
				t.Errorf("printed %q and %.200q", r.stdout, r.stderr)
			}
		})
	}
}

// Containers of different names do not know of one another.
func TestLifecycleManyAtOnce(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	dir, before := t.TempDir(), socketsOf(t, a.Host)
	const count = 20
	outputs := make([]string, count)
	var group sync.WaitGroup
	for i := range count {
		args := append([]string{"run", "--run-dir", dir, "--name", uniqueName("many")}, minimal()...)
		c := command(t, a.Host, tsugiki, append(args, "--", attackProgram(t, "static"), "blackhole", "0", allowed4.String(), allowed4.String())...)
		group.Add(1)
		go func() {
			defer group.Done()
			out, err := c.CombinedOutput()
			outputs[i] = fmt.Sprintf("%s%v", out, err)
		}()
	}
	group.Wait()
	want := strings.Repeat("connect: ok\n", 20) + "<nil>"
	for i, out := range outputs {
		if out != want {
			t.Errorf("container %d: %s", i, out)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("run directory: %v %v", left, err)
	}
	testkit.Eventually(t, func() error {
		if n := socketsOf(t, a.Host); n > before {
			return fmt.Errorf("the host has %d sockets, had %d", n, before)
		}
		return nil
	})
}

// A program that lets those wait who serve it does not keep its container from
// ending.
func TestLifecycleEndsInSpiteOf(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	for _, tt := range []struct {
		name  string
		flags []string
		args  []string
	}{
		{"memory that is never there", []string{"--cap-add", "SYS_PTRACE"}, []string{"orphan", "memory"}},
		{"helpers that it stopped", nil, []string{"orphan", "stopped"}},
		{"helpers that it took the files from", nil, []string{"orphan", "limited"}},
		{"helpers that another user stopped", []string{"-u", "65534:65534"}, []string{"orphan", "stopped"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.flags != nil && tt.flags[0] == "--cap-add" {
				needsUserfaultfd(t)
			}
			name, dir := uniqueName("stuck"), t.TempDir()
			args := append([]string{"run", "--run-dir", dir, "--name", name}, append(withIngress(), tt.flags...)...)
			args = append(append(args, "--", attackProgram(t, "static")), append(tt.args, allowed4.String())...)
			c := command(t, a.Host, tsugiki, args...)
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- c.Wait() }()
			select {
			case err := <-ended:
				if err != nil {
					t.Errorf("tsugiki: %v", err)
				}
			case <-time.After(testkit.Patience):
				t.Errorf("tsugiki has not ended %v after its program", testkit.Patience)
				_ = c.Process.Kill()
				<-ended
				succeed(t, command(t, a.Host, tsugiki, "run", "--run-dir", dir, "--", "true"))
			}
			if group := filepath.Join(ownCgroup(t), "tsugiki-"+name); exists(group) {
				t.Errorf("cgroup %s is there", group)
				removeCgroup(t, group)
			}
		})
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// removeCgroup removes what tsugiki has left, so that a failed test does not.
func removeCgroup(t *testing.T, group string) {
	t.Helper()
	testkit.Eventually(t, func() error { return testkit.RemoveGroup(group) })
}

// needsUserfaultfd skips the test where the kernel has none.
func needsUserfaultfd(t *testing.T) {
	t.Helper()
	const number = 323 // of x86-64
	fd, _, errno := unix.Syscall(number, unix.O_CLOEXEC, 0, 0)
	if errno != 0 {
		t.Skip("skip: needs userfaultfd(2) (CONFIG_USERFAULTFD)")
	}
	unix.Close(int(fd))
}

// Signals to tsugiki are the program's, in the order in which they came.
func TestLifecyclePassesSignalsOn(t *testing.T) {
	t.Parallel()
	top := testkit.Build(t, testkit.Options{NoRemote: true})
	c := newContainer(t, top.Host, nil, "ready", attackProgram(t, "static"), "signals")
	var want []string
	for _, sig := range []unix.Signal{unix.SIGUSR1, unix.SIGINT, unix.SIGUSR2, unix.SIGHUP, unix.SIGTERM} {
		_ = c.Process.Signal(sig)
		line := fmt.Sprintf("signal: %02d", int(sig))
		want = append(want, line)
		c.await(line)
	}
	c.waitEnd(t)
	if got := c.said[1:]; !slices.Equal(got, want) {
		t.Errorf("the program got %v, want %v", got, want)
	}
	if status := c.ProcessState.ExitCode(); status != 7 {
		t.Errorf("exit status %d, want the program's 7", status)
	}
	testkit.Eventually(t, func() error { return c.gone(t) })
}

// A program that stops stops tsugiki, for whoever waits for that; continued, both
// go on. While tsugiki alone is stopped, calls do not fail.
func TestLifecycleStopAndContinue(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	c := newContainer(t, a.Host, minimal(), "warm", attackProgram(t, "static"), "short", "40", allowed4.String())
	in := func(pid int, stopped bool) func() error {
		return func() error {
			if s := state(pid); (s == 'T') != stopped {
				return fmt.Errorf("process %d is in state %c", pid, s)
			}
			return nil
		}
	}
	_ = unix.Kill(c.program(), unix.SIGSTOP)
	testkit.Eventually(t, in(c.Process.Pid, true))
	_ = c.Process.Signal(unix.SIGCONT)
	testkit.Eventually(t, in(c.Process.Pid, false))
	testkit.Eventually(t, in(c.program(), false))

	_ = c.Process.Signal(unix.SIGSTOP)
	testkit.Eventually(t, in(c.Process.Pid, true))
	c.next()
	c.await("failed") // the gate answers all of these calls
	_ = c.Process.Signal(unix.SIGCONT)
	testkit.Eventually(t, in(c.Process.Pid, false))
	if got := c.said[len(c.said)-1]; got != "failed: 0 of 44" {
		t.Errorf("while tsugiki was stopped: %s", got)
	}
	_ = c.stdin.Close()
	c.waitEnd(t)
	testkit.Eventually(t, func() error { return c.gone(t) })
}

// next lets an attack go on to its next step.
func (h *held) next() {
	h.t.Helper()
	if _, err := h.stdin.Write([]byte("\n")); err != nil {
		h.t.Fatal(err)
	}
}
