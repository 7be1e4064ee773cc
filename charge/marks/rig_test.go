package marks

import (
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/cputime"
)

func lockThread() { runtime.LockOSThread() }

func open(t testing.TB) *Meter {
	t.Helper()
	m, err := New()
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// start starts a daemon, which is killed when the test ends.
func start(t testing.TB, role string, args ...string) int {
	t.Helper()
	return run(t, command(role, args...))
}

func command(role string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), roleVar+"="+role)
	if role == "compute" {
		cmd.Env = append(cmd.Env, "GODEBUG=asyncpreemptoff=1")
	}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

func run(t testing.TB, cmd *exec.Cmd) int {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

// rig is the files of two containers: a pipe and a log of each.
type rig struct {
	pipes, logs []string
	writers     []*os.File
}

func newRig(t testing.TB) *rig {
	t.Helper()
	dir, r := t.TempDir(), &rig{}
	for _, name := range []string{"a", "b"} {
		pipe, log := filepath.Join(dir, name+".pipe"), filepath.Join(dir, name+".log")
		for _, p := range []string{pipe, pipe + ".idle"} {
			if err := unix.Mkfifo(p, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		w, err := os.OpenFile(pipe, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { w.Close() })
		if err := os.WriteFile(log, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		r.pipes, r.logs, r.writers = append(r.pipes, pipe), append(r.logs, log), append(r.writers, w)
	}
	return r
}

func (r *rig) args() []string {
	return []string{r.pipes[0], r.logs[0], r.pipes[1], r.logs[1]}
}

func own(t testing.TB, m *Meter, path string, owner uint32) File {
	t.Helper()
	f, err := Identify(path)
	if err == nil {
		err = m.Own(f, owner)
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// produce has the containers write so many lines each, every 10 ms, for a while. They
// take turns in being the first, whose lines find the daemon asleep and are read in
// smaller pieces.
func (r *rig) produce(t testing.TB, length time.Duration, lines ...int) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for n := 0; n < int(length/(10*time.Millisecond)); n++ {
		for i := range lines {
			if n%2 == 1 {
				i = len(lines) - 1 - i
			}
			for range lines[i] {
				if _, err := fmt.Fprintf(r.writers[i], "line %d of eighty bytes or so, as programs print them %s\n", n, strings.Repeat("x", 20)); err != nil {
					t.Fatal(err)
				}
			}
		}
		<-tick.C
	}
	time.Sleep(50 * time.Millisecond) // the last lines are handled
}

func take(t *testing.T, m *Meter, to map[uint32]time.Duration) {
	t.Helper()
	taken, err := m.Take()
	if err != nil {
		t.Fatal(err)
	}
	for owner, d := range taken {
		to[owner] += d
	}
}

func clockOf(t testing.TB, pid int) time.Duration {
	t.Helper()
	d, err := cputime.Process(pid)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// measure watches a daemon during work, taking every 50 ms, and returns what each
// owner had of it. The sum has to be the daemon's CPU clock.
func measure(t *testing.T, m *Meter, pid int, work func()) map[uint32]time.Duration {
	t.Helper()
	time.Sleep(100 * time.Millisecond) // it has started
	before := clockOf(t, pid)
	if err := m.Watch(pid); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	sums, done := make(map[uint32]time.Duration), make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			time.Sleep(50 * time.Millisecond)
			taken, err := m.Take()
			if err != nil {
				t.Error(err)
			}
			for owner, d := range taken {
				sums[owner] += d
			}
		}
	}()
	work()
	stop()
	<-done
	if err := m.Unwatch(pid); err != nil {
		t.Fatal(err)
	}
	spent := clockOf(t, pid) - before
	take(t, m, sums)
	var sum time.Duration
	for _, d := range sums {
		sum += d
	}
	t.Logf("clock %v, by owner %v", spent, sums)
	if diff := (sum - spent).Abs(); diff > spent/50 {
		t.Errorf("divided %v of %v", sum, spent)
	}
	return sums
}

// shareOf is an owner's part of what is owned.
func shareOf(sums map[uint32]time.Duration, owner uint32) float64 {
	var all time.Duration
	for o, d := range sums {
		if o != 0 {
			all += d
		}
	}
	return float64(sums[owner]) / float64(all)
}

func wantShare(t *testing.T, sums map[uint32]time.Duration, owner uint32, want, tolerance float64) {
	t.Helper()
	if got := shareOf(sums, owner); math.Abs(got-want) > tolerance {
		t.Errorf("owner %d has %.3f of what is owned, want %.3f ± %.3f", owner, got, want, tolerance)
	}
}

func wantOwned(t *testing.T, sums map[uint32]time.Duration, part float64) {
	t.Helper()
	var all time.Duration
	for _, d := range sums {
		all += d
	}
	if got := 1 - float64(sums[0])/float64(all); got < part {
		t.Errorf("only %.3f of the daemon's time is owned, want %.3f", got, part)
	}
}
