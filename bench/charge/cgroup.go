package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/internal/sys/mounts"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/cputime"
)

// hierarchies are the mounts of the controllers that are used: the same folder for
// all of them in cgroup v2, and for some in v1.
type hierarchies map[string]string

var controllers = []string{"cpu", "cpuacct", "cpuset"}

// findHierarchies reads where the controllers are mounted.
func findHierarchies() (hierarchies, error) {
	all, err := cgroup.Find(mounts.Self)
	if err != nil {
		return nil, err
	}
	found, unified := hierarchies{}, all.V2.Mount
	for _, c := range controllers {
		found[c] = all.V1[c].Mount
	}
	for _, c := range controllers {
		if found[c] == "" && unified == "" {
			return nil, fmt.Errorf("no hierarchy with the controller %s", c)
		} else if found[c] == "" {
			found[c] = unified
		}
	}
	return found, nil
}

// v2 tells whether a folder is a group of cgroup v2.
func v2(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
}

// clock is the CPU time of a group and of those below it.
func (h hierarchies) clock(group string) cputime.Group {
	return cputime.Group(filepath.Join(h["cpuacct"], group))
}

// make makes a group in every hierarchy, whose processes run on one CPU.
func (h hierarchies) make(group string, cpu int) error {
	for _, c := range controllers {
		dir := filepath.Join(h[c], group)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if c == "cpu" && v2(dir) { // its parent has the rig's processes in a child
			if err := os.WriteFile(filepath.Join(filepath.Dir(dir), "cgroup.subtree_control"), []byte("+cpu +cpuset"), 0); err != nil {
				return fmt.Errorf("give groups a CPU controller: %w", err)
			}
		}
	}
	dir := filepath.Join(h["cpuset"], group)
	if !v2(dir) { // where memory comes from has to be said too
		mems, err := os.ReadFile(filepath.Join(filepath.Dir(dir), "cpuset.mems"))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "cpuset.mems"), mems, 0)
		}
		if err != nil {
			return fmt.Errorf("pin %s: %w", group, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "cpuset.cpus"), []byte(strconv.Itoa(cpu)), 0); err != nil {
		return fmt.Errorf("pin %s: %w", group, err)
	}
	return nil
}

// weigh sets how much of the CPU a group gets beside others, 1 being the default.
func (h hierarchies) weigh(group string, weight int) error {
	dir := filepath.Join(h["cpu"], group)
	file, value := "cpu.shares", 1024*weight
	if v2(dir) {
		file, value = "cpu.weight", 100*weight
	}
	return os.WriteFile(filepath.Join(dir, file), []byte(strconv.Itoa(value)), 0)
}

// limit sets the quota of a group.
func (h hierarchies) limit(group string, quota time.Duration) error {
	dir := filepath.Join(h["cpu"], group)
	file, value := "cpu.cfs_quota_us", strconv.FormatInt(quota.Microseconds(), 10)
	if v2(dir) {
		file, value = "cpu.max", value+" "+strconv.FormatInt(period.Microseconds(), 10)
	}
	return os.WriteFile(filepath.Join(dir, file), []byte(value), 0)
}

// procs are the files that move a process into a group, one for each hierarchy.
func (h hierarchies) procs(group string) []string {
	var files []string
	for _, c := range controllers {
		files = append(files, filepath.Join(h[c], group, "cgroup.procs"))
	}
	slices.Sort(files)
	return slices.Compact(files)
}

// contains tells whether a process is counted in the usage of a group.
func (h hierarchies) contains(group string, pid int) (bool, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(data)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		counts := slices.Contains(strings.Split(f[1], ","), "cpuacct") || f[1] == "" && v2(h["cpuacct"])
		if counts {
			return f[2] == group || strings.HasPrefix(f[2], group+"/"), nil
		}
	}
	return false, errors.New("no group with a CPU clock in /proc/PID/cgroup")
}

// processCPU is the CPU time of all threads of a process.
func processCPU(pid int) (time.Duration, error) {
	d, err := cputime.Process(pid)
	if err != nil {
		return 0, fmt.Errorf("read the CPU clock of process %d: %w", pid, err)
	}
	return d, nil
}
