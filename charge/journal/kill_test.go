package journal

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

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// hold runs an agent that has lowered a quota and frozen a group. It prints its undo helper's pid
// and waits until it is killed.
func hold(j *Journal, quota, freezer string, _ int) error {
	file, state := filepath.Join(quota, quotaFile), filepath.Join(freezer, freezeFile)
	_, err1 := j.Write(Quota, file, ms80, ms20)
	_, err2 := j.Write(Thaw, state, thawed, frozen, freezing)
	err := errors.Join(err1, err2, os.WriteFile(file, []byte(ms20), 0), os.WriteFile(state, []byte(frozen), 0))
	if err != nil {
		return err
	}
	fmt.Println(j.PID())
	return awaitKill()
}

// awaitKill waits to be killed, or for the test's end.
func awaitKill() error {
	_, err := os.Stdin.Read(make([]byte, 1))
	return fmt.Errorf("nobody has killed it: %w", err)
}

// scribe runs an agent that writes an entry and stops before a step. It prints the step's name, or
// "end" if it has fewer steps.
func scribe(j *Journal, quota, _ string, stop int) error {
	steps := 0
	step = func(name string) {
		if steps++; steps == stop {
			fmt.Println(name)
			fmt.Fprintln(os.Stderr, awaitKill())
			os.Exit(1)
		}
	}
	file := filepath.Join(quota, quotaFile)
	put := func(text string) error {
		step("write " + text)
		err := os.WriteFile(file, []byte(text), 0)
		step("written " + text)
		return err
	}
	for range 2 { // the second time in a slot that was used
		e, err := j.Write(Quota, file, ms80)
		if err != nil {
			return err
		}
		present := ms80
		for _, text := range []string{ms20, ms66, ms30} {
			if err := errors.Join(e.Ours(present, text), put(text), e.Original(ms80)); err != nil {
				return err
			}
			present = text
		}
		if err := put(ms80); err != nil {
			return err
		}
		e.Suspend()
		if err := errors.Join(e.Resume(), put(ms30), put(ms80)); err != nil {
			return err
		}
		e.Done()
	}
	fmt.Println("end")
	return awaitKill()
}

func TestKilledAgent(t *testing.T) {
	dir, quota, freezer := t.TempDir(), group(t, "cpu"), group(t, "freezer")
	write(t, ms80, quota, quotaFile)
	sleeper(t, quota, freezer)
	path := filepath.Join(dir, "undo")
	cmd, _ := startAgent(t, "hold", undoHelperPath(t), path, quota, freezer)
	await(t, "frozen", func() bool { return read(t, freezer, freezeFile) == frozen })
	if _, err := openNow(path); !errors.Is(err, ErrBusy) {
		t.Errorf("open a living agent's journal: %v, want %v", err, ErrBusy)
	}
	start := time.Now()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	await(t, "thawed", func() bool { return read(t, freezer, freezeFile) == thawed })
	t.Logf("thawed %v after the kill", time.Since(start))
	_ = cmd.Wait()
	// The next agent gets the journal only when the undo helper is through.
	j := open(t, path)
	defer j.Close()
	if got := read(t, quota, quotaFile); got != ms80 {
		t.Errorf("quota %s when the journal is free, want 80000", got)
	}
	if n := restore(t, j); n != 0 {
		t.Errorf("%d things were left to undo", n)
	}
}

// openNow calls Open without waiting for the lock.
func openNow(path string) (*Journal, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return nil, ErrBusy
	} else if err != nil {
		return nil, err
	}
	return nil, nil
}

// After an undo helper was killed, another one is started and does the work.
func TestKilledUndoHelper(t *testing.T) {
	quota, freezer := group(t, "cpu"), group(t, "freezer")
	write(t, ms80, quota, quotaFile)
	sleeper(t, freezer)
	path := filepath.Join(t.TempDir(), "undo")
	cmd, said := startAgent(t, "hold", undoHelperPath(t), path, quota, freezer)
	first, err := strconv.Atoi(said)
	if err != nil {
		t.Fatal(err)
	}
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGKILL} {
		if err := unix.Kill(first, sig); err != nil {
			t.Fatalf("%v: %v", sig, err) // it has ended before its time
		}
	}
	await(t, "another undo helper", func() bool {
		pid := undoHelperOf(t, cmd.Process.Pid)
		return pid != 0 && pid != first
	})
	if got := read(t, quota, quotaFile); got != ms20 {
		t.Errorf("quota %s after the undo helper's death, want 20000 still", got)
	}
	kill(t, cmd)
	await(t, "undone", func() bool {
		return read(t, quota, quotaFile) == ms80 && read(t, freezer, freezeFile) == thawed
	})
}

// undoHelperOf finds the undo helper that a process has started.
func undoHelperOf(t *testing.T, pid int) int {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range tasks {
		text, _ := os.ReadFile(file) // the thread may have ended
		for _, child := range strings.Fields(string(text)) {
			comm, _ := os.ReadFile("/proc/" + child + "/comm")
			if string(comm) == Program+"\n" {
				n, _ := strconv.Atoi(child)
				return n
			}
		}
	}
	return 0
}

// If the agent and the undo helper are killed, the next agent undoes.
func TestKilledWithoutUndoHelper(t *testing.T) {
	quota, freezer := group(t, "cpu"), group(t, "freezer")
	write(t, ms80, quota, quotaFile)
	sleeper(t, freezer)
	path := filepath.Join(t.TempDir(), "undo")
	cmd, _ := startAgent(t, "hold", "", path, quota, freezer)
	kill(t, cmd)
	if got := read(t, freezer, freezeFile); got != frozen {
		t.Fatalf("%s before the restore", got)
	}
	j := open(t, path)
	defer j.Close()
	if n := restore(t, j); n != 2 || read(t, freezer, freezeFile) != thawed || read(t, quota, quotaFile) != ms80 {
		t.Errorf("%d undone, %s, quota %s", n, read(t, freezer, freezeFile), read(t, quota, quotaFile))
	}
}

// After a kill at any step, the quota has its original value.
func TestKilledAnywhere(t *testing.T) {
	quota, dir := group(t, "cpu"), t.TempDir()
	write(t, ms80, quota, quotaFile)
	path := filepath.Join(dir, "undo")
	undone := 0
	for stop, at := 1, ""; at != "end"; stop++ {
		var cmd *exec.Cmd
		cmd, at = startAgent(t, "scribe", "", path, quota, "", strconv.Itoa(stop))
		kill(t, cmd)
		before := read(t, quota, quotaFile)
		j := open(t, path)
		n := restore(t, j)
		undone += n
		if got := read(t, quota, quotaFile); got != ms80 {
			t.Errorf("killed at step %d, %s: quota %s, want 80000", stop, at, got)
		}
		if before != ms80 && n != 1 {
			t.Errorf("killed at step %d, %s: the quota was %s, and %d are undone", stop, at, before, n)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if undone == 0 {
		t.Error("no kill came at a step where there was something to undo")
	}
}

func TestMove(t *testing.T) {
	from, to := group(t, "cpu"), group(t, "cpu")
	for name, target := range map[string]string{
		"back":                    to,
		"to the nearest ancestor": filepath.Join(to, "gone", "too"),
	} {
		t.Run(name, func(t *testing.T) {
			j := open(t, filepath.Join(t.TempDir(), "undo"))
			defer j.Close()
			g := filepath.Join(from, "helpers")
			if err := os.Mkdir(g, 0o755); err != nil {
				t.Fatal(err)
			}
			if _, err := j.Move(g, target); err != nil {
				t.Fatal(err)
			}
			pids := map[int]bool{}
			for range 20 {
				pids[sleeper(t, g)] = true
			}
			if n := restore(t, j); n != 1 {
				t.Errorf("%d undone, want 1", n)
			}
			for _, line := range strings.Fields(read(t, to, "cgroup.procs")) {
				pid, _ := strconv.Atoi(line)
				delete(pids, pid)
			}
			if len(pids) > 0 {
				t.Errorf("not moved: %v", pids)
			}
			if _, err := os.Stat(g); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the group is still there (%v)", err)
			}
		})
	}
}

// Close undoes the entries that are not Done, even if the undo helper dies at that moment.
func TestClose(t *testing.T) {
	for _, guarded := range []bool{false, true} {
		t.Run(fmt.Sprintf("guarded %v", guarded), func(t *testing.T) {
			quota := group(t, "cpu")
			write(t, ms80, quota, quotaFile)
			path := filepath.Join(t.TempDir(), "undo")
			j := open(t, path)
			if guarded {
				if err := j.Guard(testLog(t)); err != nil {
					t.Fatal(err)
				}
			}
			e, err := j.Write(Quota, filepath.Join(quota, quotaFile), ms80, ms20)
			if err != nil {
				t.Fatal(err)
			}
			write(t, ms20, quota, quotaFile)
			if guarded {
				if err := unix.Kill(j.PID(), unix.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
			if err := j.Close(); err != nil {
				t.Error(err)
			}
			e.Done()
			if got := read(t, quota, quotaFile); got != ms80 {
				t.Errorf("quota %s after Close, want 80000", got)
			}
			if _, err := j.Write(Quota, filepath.Join(quota, quotaFile), "1", "2"); !errors.Is(err, ErrClosed) {
				t.Errorf("write: %v, want %v", err, ErrClosed)
			}
			open(t, path).Close()
		})
	}
}

func TestUndoHelperIsMissing(t *testing.T) {
	j := open(t, filepath.Join(t.TempDir(), "undo"))
	defer j.Close()
	for _, path := range []string{"/nowhere", "/bin/true"} {
		j.UndoHelper = path
		if err := j.Guard(slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%s: no error", path)
		}
	}
	j.UndoHelper = undoHelperPath(t)
}

func await(t testing.TB, what string, done func() bool) {
	t.Helper()
	testkit.Eventually(t, func() error {
		if !done() {
			return fmt.Errorf("not %s", what)
		}
		return nil
	})
}
