package rig

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/tsugiki/tsugiki/internal/cputime"
	"github.com/tsugiki/tsugiki/internal/sys/proc"

	"golang.org/x/sys/unix"
)

// Stats has the resources that a container has used and uses.
type Stats struct {
	CPU         time.Duration // of all its processes
	Periods     int64         // in which the container ran, if it has a quota
	Throttled   int64         // the part of Periods in which the quota was used up
	ThrottledBy time.Duration // the total time of throttling
	Processes   int
	PSS         int64 // bytes, of the container's processes; shared pages are divided among their users
	HelpersPSS  int64 // bytes, of the container's own gate and keepers
}

// Stats reads the resources that the container uses.
func (c *Container) Stats() (s Stats, err error) {
	if s.CPU, err = cputime.Group(filepath.Join(c.rig.hierarchy("cpuacct"), c.Cgroup())).Elapsed(); err != nil {
		return s, fmt.Errorf("read the CPU time of container %s: %w", c.spec.Name, err)
	}
	stat, err := readFields(filepath.Join(c.rig.hierarchy("cpu"), c.Cgroup(), "cpu.stat"))
	if err != nil {
		return s, fmt.Errorf("read how container %s was throttled: %w", c.spec.Name, err)
	}
	s.Periods, s.Throttled = stat["nr_periods"], stat["nr_throttled"]
	s.ThrottledBy = time.Duration(stat["throttled_time"]) + time.Duration(stat["throttled_usec"])*time.Microsecond
	if s.PSS, s.Processes, err = pssBelow(filepath.Join(c.rig.hierarchy("cpu"), c.Cgroup())); err != nil {
		return s, err
	}
	// The agent makes groups below its own group. Their names are containers' names and a mark of
	// eight characters.
	groups, err := filepath.Glob(filepath.Join(c.rig.group, helpersGroup, "tsugiki-"+c.spec.Name+"-????????"))
	for _, group := range groups {
		pss, _, err := pssBelow(group)
		if err != nil {
			return s, err
		}
		s.HelpersPSS += pss
	}
	return s, err
}

// hierarchy returns the mount of a controller's hierarchy.
func (r *Rig) hierarchy(controller string) string {
	if mount, ok := r.v1[controller]; ok {
		return mount
	}
	return filepath.Dir(r.group)
}

// pssBelow returns the PSS of the processes in a group and below. A missing group and a process
// that has just ended count 0.
func pssBelow(group string) (sum int64, processes int, err error) {
	err = eachProcess(group, func(pid string) error {
		pss, err := pssOf(pid)
		sum, processes = sum+pss, processes+1
		return err
	})
	return sum, processes, err
}

// eachProcess calls fn for each process in a group and below. A missing group has no processes.
func eachProcess(group string, fn func(pid string) error) error {
	return filepath.WalkDir(group, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || d.Name() != "cgroup.procs" {
			return err
		}
		pids, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, unix.ENODEV) {
			return err
		}
		for pid := range strings.FieldsSeq(string(pids)) {
			if err := fn(pid); err != nil {
				return err
			}
		}
		return nil
	})
}

// Processes is the number and the memory of all processes of one program.
type Processes struct {
	Count int
	PSS   int64 // bytes
}

// Processes returns the programs that run in the rig and in its containers, by their names in
// /proc/PID/comm.
func (r *Rig) Processes() (map[string]Processes, error) {
	found := make(map[string]Processes)
	err := eachProcess(r.group, func(pid string) error {
		name, err := os.ReadFile(filepath.Join("/proc", pid, "comm"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			return nil
		}
		if err != nil {
			return err
		}
		pss, err := pssOf(pid)
		p := found[strings.TrimSpace(string(name))]
		found[strings.TrimSpace(string(name))] = Processes{p.Count + 1, p.PSS + pss}
		return err
	})
	return found, err
}

func pssOf(pid string) (int64, error) {
	number, err := strconv.Atoi(pid)
	if err != nil {
		return 0, err
	}
	n, err := proc.PSS(number)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return 0, nil
	}
	return n, err
}

// Memory is the machine's use of memory, in bytes. Processes and Agent belong to the rig. The other
// fields belong to the whole machine.
type Memory struct {
	Available int64
	Slab      int64
	// Kernel is the memory that the kernel does not give back: the unreclaimable part of Slab, page
	// tables, per-CPU data, and vmalloc. vmalloc includes stacks (CONFIG_VMAP_STACK, the default on
	// x86-64 and arm64).
	Kernel    int64
	Processes int64 // PSS of all processes of the rig and its containers, including the agent
	Agent     int64 // PSS of the agent
}

// Memory reads the use of memory.
func (r *Rig) Memory() (m Memory, err error) {
	info, err := readFields("/proc/meminfo")
	if err != nil {
		return m, err
	}
	m.Available, m.Slab = info["MemAvailable"]<<10, info["Slab"]<<10
	for _, name := range []string{"SUnreclaim", "PageTables", "Percpu", "VmallocUsed"} {
		m.Kernel += info[name] << 10
	}
	if m.Processes, _, err = pssBelow(r.group); err != nil {
		return m, err
	}
	if a := r.Agent(); a != nil {
		m.Agent, err = pssOf(strconv.Itoa(a.PID()))
	}
	return m, err
}

// readFields reads a file in which each line has a name and a number.
func readFields(file string) (map[string]int64, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	fields := make(map[string]int64)
	for line := range strings.Lines(string(data)) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		if n, err := strconv.ParseInt(words[1], 10, 64); err == nil {
			fields[strings.TrimSuffix(words[0], ":")] = n
		}
	}
	return fields, nil
}

func readNumber(file string) (int64, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
}
