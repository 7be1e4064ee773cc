package testkit

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Settle waits until a process does nothing: each of its threads waits in a system call
// for something to come, and is off its CPU. The process has then done what it was asked for
// by something that wakes it at once (a byte in a pipe). Threads that wake by themselves may
// do so again later.
func Settle(t TB, pid int) {
	t.Helper()
	Eventually(t, func() error {
		before, err := threadSwitches(pid)
		if err != nil {
			return err
		}
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", pid))
		if err != nil {
			return err
		}
		for _, f := range files {
			text, err := os.ReadFile(f) // the kernel answers when the thread is off its CPU
			if err != nil {
				return err
			}
			if strings.HasPrefix(string(text), "running") || strings.HasPrefix(string(text), "-1") {
				return fmt.Errorf("%s: the thread is in no call that it waits in", f)
			}
		}
		if after, err := threadSwitches(pid); err != nil || after != before {
			return fmt.Errorf("a thread of process %d has run meanwhile (%w)", pid, err)
		}
		return nil
	})
}

// threadSwitches are the threads of a process and how often each was switched.
func threadSwitches(pid int) (string, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(files) == 0 {
		return "", fmt.Errorf("no threads of process %d (%w)", pid, err)
	}
	var all strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(string(text)) {
			// One that was woken and is in no CPU's queue yet has the syscall of one that waits.
			if strings.HasPrefix(line, "State:\tD") || strings.HasPrefix(line, "State:\tR") {
				return "", fmt.Errorf("%s: the thread runs, or waits for a device: %s", f, line)
			}
			if strings.Contains(line, "ctxt_switches:") {
				all.WriteString(f + " " + line)
			}
		}
	}
	return all.String(), nil
}
