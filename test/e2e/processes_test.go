package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// What /proc and cgroups say of processes.

// comm is the name of a process, empty if it is gone.
func comm(pid int) string {
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return strings.TrimSpace(string(name))
}

// stat are the words of /proc/PID/stat that follow a process's name: state, parent and so on.
func stat(pid int) []string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
}

// state is the letter of a process's state, 0 if it is gone or a zombie.
func state(pid int) byte {
	words := stat(pid)
	if len(words) == 0 || words[0] == "Z" || words[0] == "X" {
		return 0
	}
	return words[0][0]
}

// parent is the process that has started another one, or has it now; 0 if that one is gone.
func parent(pid int) (ppid int) {
	if words := stat(pid); len(words) > 1 {
		ppid, _ = strconv.Atoi(words[1])
	}
	return ppid
}

// rss is the memory that a process has, in KiB.
func rss(t *testing.T, pid int) int {
	t.Helper()
	statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	return atoi(t, strings.Fields(string(statm))[1]) * os.Getpagesize() >> 10
}

// children are the processes that all threads of a process have started.
func children(pid int) []int {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	var all []int
	for _, path := range threads {
		all = append(all, pidsIn(path)...)
	}
	return all
}

// child is the one of a process's children that has a name, or 0.
func child(pid int, name string) int {
	for _, c := range children(pid) {
		if comm(c) == name {
			return c
		}
	}
	return 0
}

// members are the processes of a cgroup.
func members(group string) []int { return pidsIn(filepath.Join(group, "cgroup.procs")) }

func pidsIn(file string) (pids []int) {
	text, _ := os.ReadFile(file) // groups and threads come and go
	for _, word := range strings.Fields(string(text)) {
		pid, _ := strconv.Atoi(word)
		pids = append(pids, pid)
	}
	return pids
}
