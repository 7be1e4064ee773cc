package shared

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/internal/cputime"
	"github.com/tsugiki/tsugiki/internal/testkit"
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
		// The Go runtime must not stop it or wait for it, and must have a processor for each
		// thread.
		cmd.Env = append(cmd.Env, "GODEBUG=asyncpreemptoff=1", "GOGC=off", "GOMAXPROCS=4")
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

// rig has the files of two containers: a pipe and a log of each.
type rig struct {
	pipes, logs []string
	writers     []*os.File
	asks        *os.File // the pipe "idle", without an owner
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
	var err error
	if r.asks, err = os.OpenFile(r.pipes[0]+".idle", os.O_RDWR, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.asks.Close() })
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

// daemon is a process that is watched from its start, and its raw counts.
type daemon struct {
	pid   int
	m     *Meter
	rig   *rig
	stdin io.Writer

	// The clock was read right before and right after Watch.
	before, after time.Duration
}

// watch starts a daemon, waits until it is idle, and watches it.
func (r *rig) watch(t testing.TB, m *Meter, role string, args ...string) *daemon {
	t.Helper()
	cmd := command(role, args...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{pid: run(t, cmd), m: m, rig: r, stdin: stdin}
	d.settle(t)
	d.begin(t)
	return d
}

func (d *daemon) begin(t testing.TB) {
	t.Helper()
	d.before = clockOf(t, d.pid)
	if err := d.m.Watch(d.pid); err != nil {
		t.Fatal(err)
	}
	d.after = clockOf(t, d.pid)
}

// settle waits until the daemon has done its work and waits for more.
func (d *daemon) settle(t testing.TB) {
	t.Helper()
	testkit.Settle(t, d.pid)
}

// weights returns the counts so far, by owner. Owner 0 is the daemon itself.
func (d *daemon) weights() byOwner {
	p := d.m.processes[d.pid]
	all := byOwner{0: time.Duration(atomic.LoadUint64(&p.sums[bpf.SharedOwnerSlotSLOT_OWN]))}
	for owner, slot := range d.m.owners.All() {
		all[owner] = time.Duration(atomic.LoadUint64(&p.sums[slot]))
	}
	return all
}

// overhead returns the overhead that is counted so far.
func (d *daemon) overhead() time.Duration {
	return time.Duration(atomic.LoadUint64(&d.m.processes[d.pid].sums[bpf.SharedOwnerSlotSLOT_OVERHEAD]))
}

// line makes a container write a line, and waits until the daemon has handled it.
func (d *daemon) line(t testing.TB, container int) {
	t.Helper()
	if _, err := io.WriteString(d.rig.writers[container], "a line of a container\n"); err != nil {
		t.Fatal(err)
	}
	d.settle(t)
}

// ask writes to the daemon's standard input, and waits until that is handled.
func (d *daemon) ask(t testing.TB, what string) {
	t.Helper()
	if _, err := io.WriteString(d.stdin, what); err != nil {
		t.Fatal(err)
	}
	d.settle(t)
}

// wantOnly calls a function, and checks that its work counts only for one owner. The owners in but
// may get time, too.
func (d *daemon) wantOnly(t *testing.T, owner uint32, do func(), but ...uint32) {
	t.Helper()
	before := d.weights()
	do()
	for o, w := range d.weights() {
		switch more := w - before[o]; {
		case o == owner && more == 0:
			t.Errorf("owner %d was worked for, and nothing is counted", o)
		case o != owner && more != 0 && !slices.Contains(but, o):
			t.Errorf("owner %d was worked for, and %v is counted for owner %d", owner, more, o)
		}
	}
}

// end ends the watch. It checks that all divided time, with the time in sums, equals the daemon's
// CPU clock.
func (d *daemon) end(t *testing.T, sums byOwner) {
	t.Helper()
	least := clockOf(t, d.pid) - d.after
	if err := d.m.Unwatch(d.pid); err != nil {
		t.Fatal(err)
	}
	most := clockOf(t, d.pid) - d.before
	take(t, d.m, sums)
	t.Logf("clock %v, by owner %v", least, sums)
	if all := sum(sums); all < least || all > most {
		t.Errorf("divided %v, the clock has gained %v to %v", all, least, most)
	}
}

func take(t *testing.T, m *Meter, to byOwner) {
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
