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

// Stats is what a container has used, and uses.
type Stats struct {
	CPU         time.Duration // of all its processes
	Periods     int64         // in which it ran, if it has a quota
	Throttled   int64         // of those: in which it was held back
	ThrottledBy time.Duration // for how long
	Processes   int
	PSS         int64 // bytes, of its processes; what several share is divided among them
	HelpersPSS  int64 // bytes, of the processes that work for it alone: gate and keepers
}

// Stats reads what the container uses.
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
	// The agent makes groups in its own, named after containers, with a mark of eight
	// characters.
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

// hierarchy is where that of a controller is mounted.
func (r *Rig) hierarchy(controller string) string {
	if mount, ok := r.v1[controller]; ok {
		return mount
	}
	return filepath.Dir(r.group)
}

// pssBelow sums the memory of the processes in a group and below. Of a group that is
// not there, and of a process that has just ended, it is nothing.
func pssBelow(group string) (sum int64, processes int, err error) {
	err = eachProcess(group, func(pid string) error {
		pss, err := pssOf(pid)
		sum, processes = sum+pss, processes+1
		return err
	})
	return sum, processes, err
}

// eachProcess calls fn for each process in a group and below; for none, if the group is not
// there.
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

// Processes is what all processes of one program take together.
type Processes struct {
	Count int
	PSS   int64 // bytes
}

// Processes reads which programs run in the rig and in its containers, by their names
// (/proc/PID/comm).
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

// Memory is what the machine's memory is used for, in bytes. All but Processes and Agent
// are the whole machine's.
type Memory struct {
	Available int64
	Slab      int64
	// Kernel is what the kernel does not give back: the unreclaimable part of Slab, page
	// tables, what each CPU has of its own, and vmalloc, which stacks are a part of
	// (CONFIG_VMAP_STACK, the default of x86-64 and arm64).
	Kernel    int64
	Processes int64 // PSS of all processes of the rig's and of its containers, the agent's too
	Agent     int64 // PSS of the agent
}

// Memory reads what memory is used for.
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

// readFields reads a file of lines with a name and a number.
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
