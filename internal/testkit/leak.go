package testkit

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// Usage is what a process holds of the things that leak.
type Usage struct {
	FDs     int
	Threads int
}

// ProcessUsage counts the open files and the threads of a process.
func ProcessUsage(pid int) (Usage, error) {
	proc := fmt.Sprintf("/proc/%d", pid)
	fds, err := os.ReadDir(filepath.Join(proc, "fd"))
	if err != nil {
		return Usage{}, fmt.Errorf("count files of process %d: %w", pid, err)
	}
	threads, err := os.ReadDir(filepath.Join(proc, "task"))
	if err != nil {
		return Usage{}, fmt.Errorf("count threads of process %d: %w", pid, err)
	}
	return Usage{FDs: len(fds), Threads: len(threads)}, nil
}

// OpenFiles lists what the open files of a process are, by number. Sockets
// and pipes are as in "socket:[12345]", see proc(5).
func OpenFiles(pid int) (map[string]string, error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list files of process %d: %w", pid, err)
	}
	files := make(map[string]string, len(entries))
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil {
			continue // closed since, as the directory's own file is
		}
		files[e.Name()] = target
	}
	return files, nil
}

// CheckLeaks fails the test if, when it ends, the test's own process has more
// goroutines or open files than now. Call it before anything that registers a
// cleanup of its own: cleanups run last in, first out. Some go a little later than
// the test, so it waits until they have. Not for parallel tests.
func CheckLeaks(t TB) {
	t.Helper()
	checkLeaks(t, Patience)
}

func checkLeaks(t TB, limit time.Duration) {
	t.Helper()
	warmRuntime()
	goroutines := runtime.NumGoroutine()
	before, err := OpenFiles(os.Getpid())
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		deadline := time.Now().Add(limit)
		for {
			leaks := leaksSince(goroutines, before)
			if len(leaks) == 0 {
				return
			}
			if time.Now().After(deadline) {
				t.Errorf("leaked:\n%s", strings.Join(leaks, "\n"))
				return
			}
			time.Sleep(pollInterval)
		}
	})
}

// warmRuntime makes the Go runtime open the files that it keeps for good: its
// poller's.
func warmRuntime() {
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
}

func leaksSince(goroutines int, before map[string]string) []string {
	after, err := OpenFiles(os.Getpid())
	if err != nil {
		return []string{err.Error()}
	}
	var leaks []string
	for fd, target := range after {
		if before[fd] != target {
			leaks = append(leaks, fmt.Sprintf("file %s: %s", fd, target))
		}
	}
	if n := runtime.NumGoroutine(); n > goroutines {
		stacks := make([]byte, 64<<10)
		stacks = stacks[:runtime.Stack(stacks, true)]
		leaks = append(leaks, fmt.Sprintf("%d goroutines, had %d:\n%s", n, goroutines, stacks))
	}
	return leaks
}
