package helper

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/charge/bandwidth"
	"github.com/tsugiki/tsugiki/charge/journal"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

const (
	agentEnv = "TSUGIKI_TEST_AGENT"
	spin     = "while :; do :; done"
)

func TestMain(m *testing.M) {
	if os.Getenv(agentEnv) != "" {
		fmt.Fprintln(os.Stderr, agent(os.Args[1:]))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// agent places a helper and waits to be killed. Its arguments are the journal, the
// undo helper, the pids of the helper and of init, and the group.
func agent(args []string) error {
	j, err := journal.Open(args[0])
	if err != nil {
		return err
	}
	j.UndoHelper = args[1]
	if err := j.Guard(slog.Default()); err != nil {
		return err
	}
	var both [2]*Process
	for i := range both {
		pid, err := strconv.Atoi(args[2+i])
		if err != nil {
			return err
		}
		if both[i], err = Open(pid); err != nil {
			return err
		}
	}
	g, err := bandwidth.Open(args[4])
	if err != nil {
		return err
	}
	if _, err := Place(j, both[0], both[1], g); err != nil {
		return err
	}
	fmt.Println("placed")
	_, err = os.Stdin.Read(make([]byte, 1)) // which ends with the test
	return fmt.Errorf("nobody has killed it: %w", err)
}

// shell starts a script, in a group if one is given.
func shell(t testing.TB, script, group string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sh", "-c", script)
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		_ = cmd.Wait()
	})
	if group != "" {
		if err := enter(group, cmd.Process.Pid); err != nil {
			t.Fatal(err)
		}
	}
	return cmd
}

func process(t testing.TB, pid int) *Process {
	t.Helper()
	p, err := Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// newGroup makes a group of the cpu hierarchy. Its quota is in microseconds per 100 ms.
func newGroup(t testing.TB, quota int) *bandwidth.Group {
	t.Helper()
	root, err := bandwidth.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	path, err := os.MkdirTemp(root.Path(), "tsugiki-test-helper-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		testkit.Eventually(t, func() error {
			_ = unix.Rmdir(filepath.Join(path, "container"))
			return unix.Rmdir(path)
		})
	})
	g, err := bandwidth.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	if err := g.SetQuota(time.Duration(quota) * time.Microsecond); err != nil {
		t.Fatal(err)
	}
	return g
}

// inside returns the group of the container's processes below a group with a quota. In cgroup v2
// that is another group than the helpers'.
func inside(t testing.TB, g *bandwidth.Group) string {
	t.Helper()
	if g.Version() != "v2" {
		return g.Path()
	}
	if err := os.WriteFile(filepath.Join(g.Path(), "cgroup.subtree_control"), []byte("+cpu"), 0); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(g.Path(), "container")
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func newJournal(t testing.TB) *journal.Journal {
	t.Helper()
	j, err := journal.Open(filepath.Join(t.TempDir(), "undo"))
	if err != nil {
		t.Fatal(err)
	}
	j.UndoHelper = filepath.Join(testkit.BuildTsugiki(t), journal.Program)
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	return j
}

func groupOf(t *testing.T, pid int) string {
	t.Helper()
	path, err := bandwidth.PathOfProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func goneSoon(t *testing.T, path string) {
	t.Helper()
	testkit.Eventually(t, func() error {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s is still there (%w)", path, err)
		}
		return nil
	})
}

func TestElapsed(t *testing.T) {
	cmd := shell(t, spin, "")
	p := process(t, cmd.Process.Pid)
	if p.PID() != cmd.Process.Pid || p.Name() != "sh" && p.Name() != "helper.test" { // it may not have begun
		t.Errorf("it is %q, %d", p.Name(), p.PID())
	}
	var before time.Duration
	testkit.Eventually(t, func() error {
		d, err := p.Elapsed()
		if err != nil || d < before {
			t.Fatalf("%v after %v (%v)", d, before, err)
		}
		if before = d; d < 10*time.Millisecond {
			return fmt.Errorf("it has used %v", d)
		}
		return nil
	})
	// The scheduler's own count of its CPU time is the same while it does not run.
	if err := cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(p.PID(), &status, unix.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("it does not stop: %v, %v", status, err)
	}
	var got time.Duration
	testkit.Eventually(t, func() error { // it is on its way out
		var counted time.Duration
		stat, err1 := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", p.PID()))
		_, err2 := fmt.Sscan(string(stat), &counted)
		var err3 error
		if got, err3 = p.Elapsed(); got != counted || errors.Join(err1, err2, err3) != nil {
			return fmt.Errorf("its clock says %v, the scheduler %v (%w)", got, counted, errors.Join(err1, err2, err3))
		}
		return nil
	})

	_ = cmd.Process.Kill()
	p.Await()
	last, err := p.Elapsed() // nobody has waited for it yet
	if err != nil || last < got {
		t.Errorf("after its end: %v (%v), want %v at least", last, err, got)
	}
	_ = cmd.Wait()
	if again, err := p.Elapsed(); !errors.Is(err, os.ErrProcessDone) || again != last {
		t.Errorf("after Wait: %v (%v), want %v and %v", again, err, last, os.ErrProcessDone)
	}
	if _, err := Open(cmd.Process.Pid); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("open it again: %v, want %v", err, os.ErrProcessDone)
	}
	if _, err := Open(0); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("open 0: %v, want %v", err, os.ErrProcessDone)
	}
}

func TestOfGroup(t *testing.T) {
	g := newGroup(t, 50000)
	path := g.Path()
	// Where the CPU time is in another hierarchy, the group has to be there too.
	if !g.OneHierarchy() {
		twin := strings.Replace(path, "/cpu/", "/cpuacct/", 1)
		if err := os.Mkdir(twin, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { testkit.Eventually(t, func() error { return unix.Rmdir(twin) }) })
		cmd := shell(t, spin, path)
		if err := enter(twin, cmd.Process.Pid); err != nil {
			t.Fatal(err)
		}
	} else {
		shell(t, spin, path)
	}
	h, err := OfGroup(path)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if h.Name() != filepath.Base(path) {
		t.Errorf("it is called %q", h.Name())
	}
	testkit.Eventually(t, func() error {
		d, err := h.Elapsed()
		if err == nil && d < 20*time.Millisecond {
			err = fmt.Errorf("it has used %v", d)
		}
		return err
	})
	if _, err := OfGroup("/"); err == nil {
		t.Error("the root is a helper's group")
	}
}

func TestPlace(t *testing.T) {
	old, g := newGroup(t, 90000), newGroup(t, 2000)
	init, cmd := shell(t, "exec sleep 1000", inside(t, g)), shell(t, "sh -c '"+spin+"' & "+spin, old.Path())
	child := cmd.Process.Pid
	p := process(t, cmd.Process.Pid)
	l, err := Place(newJournal(t), p, process(t, init.Process.Pid), g)
	if err != nil {
		t.Fatal(err)
	}
	placed := filepath.Join(g.Path(), bandwidth.HelperGroup, strconv.Itoa(p.PID()))
	if got := groupOf(t, child); got != placed {
		t.Errorf("the helper is in %s, want %s", got, placed)
	}
	// The container sleeps, so that it is the helper that the quota stops.
	testkit.Settle(t, init.Process.Pid)
	before := throttled(t, g)
	testkit.Eventually(t, func() error {
		if throttled(t, g) == before {
			return errors.New("the quota stops nobody")
		}
		return nil
	})
	if _, err := Place(newJournal(t), p, p, g); !errors.Is(err, ErrNotPlaceable) {
		t.Errorf("place it again: %v, want %v", err, ErrNotPlaceable)
	}
	// The container ends.
	_ = init.Process.Kill()
	select {
	case <-l.Done():
	case <-time.After(testkit.Patience):
		t.Fatal("it is not undone after init's end")
	}
	if err := l.Undo(); err != nil {
		t.Error(err)
	}
	if got := groupOf(t, p.PID()); got != old.Path() {
		t.Errorf("the helper is in %s, want %s", got, old.Path())
	}
	goneSoon(t, filepath.Dir(placed))
}

// throttled returns the number of periods in which the quota has stopped the group.
func throttled(t *testing.T, g *bandwidth.Group) int {
	t.Helper()
	stat, err := os.ReadFile(filepath.Join(g.Path(), "cpu.stat"))
	if err != nil {
		t.Fatal(err)
	}
	var n int
	_, rest, _ := strings.Cut(string(stat), "nr_throttled ")
	if _, err := fmt.Sscan(rest, &n); err != nil {
		t.Fatalf("%v: %s", err, stat)
	}
	return n
}

// A child that a helper forks while it is moved back is moved back, too. It does not matter if the
// helper's former group was removed.
func TestUndoWhileItForks(t *testing.T) {
	old, g := newGroup(t, 90000), newGroup(t, 80000)
	lost := filepath.Join(old.Path(), "lost")
	if err := os.Mkdir(lost, 0o755); err != nil {
		t.Fatal(err)
	}
	init := shell(t, "exec sleep 1000", inside(t, g))
	cmd := shell(t, "while :; do sleep 0.01 & sleep 0.02 & sleep 0.005; done", lost)
	l, err := Place(newJournal(t), process(t, cmd.Process.Pid), process(t, init.Process.Pid), g)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, func() error { return unix.Rmdir(lost) }) // children that were left behind
	if err := l.Undo(); err != nil {
		t.Fatal(err)
	}
	if got := groupOf(t, cmd.Process.Pid); got != old.Path() {
		t.Errorf("the helper is in %s, want %s", got, old.Path())
	}
	goneSoon(t, filepath.Join(g.Path(), bandwidth.HelperGroup))
}

// The undo helper undoes the placements of a killed agent, for several helpers at once.
func TestKilledAgent(t *testing.T) {
	undoHelper := filepath.Join(testkit.BuildTsugiki(t), journal.Program)
	old, g := newGroup(t, 90000), newGroup(t, 80000)
	init := shell(t, "exec sleep 1000", inside(t, g))
	helper := shell(t, "while :; do sleep 0.01 & sleep 0.02; done", old.Path())
	cmd := exec.Command("/proc/self/exe", filepath.Join(t.TempDir(), "undo"), undoHelper,
		strconv.Itoa(helper.Process.Pid), strconv.Itoa(init.Process.Pid), g.Path())
	cmd.Env = append(os.Environ(), agentEnv+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 10)); err != nil {
		t.Error(err)
	}
	placed := groupOf(t, helper.Process.Pid)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if !strings.HasPrefix(placed, g.Path()) {
		t.Fatalf("it was in %s", placed)
	}
	goneSoon(t, filepath.Join(g.Path(), bandwidth.HelperGroup))
	if got := groupOf(t, helper.Process.Pid); got != old.Path() {
		t.Errorf("the helper is in %s, want %s", got, old.Path())
	}
}

func TestNotPlaceable(t *testing.T) {
	root, err := bandwidth.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	p := process(t, shell(t, "exec sleep 1000", "").Process.Pid)
	if _, err := Place(nil, p, p, root); !errors.Is(err, ErrNotPlaceable) {
		t.Errorf("below the root: %v, want %v", err, ErrNotPlaceable)
	}
	if root.Version() != "v2" {
		return
	}
	g := newGroup(t, 50000)
	if _, err := Place(nil, p, p, g); !errors.Is(err, ErrNotPlaceable) {
		t.Errorf("below a group that does not delegate cpu: %v, want %v", err, ErrNotPlaceable)
	}
	shell(t, "exec sleep 1000", g.Path())
	if _, err := Place(nil, p, p, g); !errors.Is(err, ErrNotPlaceable) {
		t.Errorf("below a group that has processes: %v, want %v", err, ErrNotPlaceable)
	}
}

func BenchmarkElapsed(b *testing.B) {
	p, err := Open(os.Getpid())
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	for b.Loop() {
		if _, err := p.Elapsed(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPlaced measures the share of a CPU that a container and a placed helper use together.
// Both would use all of it. The quota is a fifth.
func BenchmarkPlaced(b *testing.B) {
	g := newGroup(b, 20000)
	init, cmd := shell(b, spin, inside(b, g)), shell(b, spin, "")
	own, p := process(b, init.Process.Pid), process(b, cmd.Process.Pid)
	l, err := Place(newJournal(b), p, own, g)
	if err != nil {
		b.Fatal(err)
	}
	both := func() time.Duration {
		x, err1 := own.Elapsed()
		y, err2 := p.Elapsed()
		if err := errors.Join(err1, err2); err != nil {
			b.Fatal(err)
		}
		return x + y
	}
	begin, before := time.Now(), both()
	for b.Loop() {
		time.Sleep(time.Second)
	}
	b.ReportMetric(float64(both()-before)/float64(time.Since(begin)), "share")
	if err := l.Undo(); err != nil {
		b.Error(err)
	}
}
