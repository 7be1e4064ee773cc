package bandwidth

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Throttling counts how often the limit stopped the group, since the group was made.
type Throttling struct {
	Periods   uint64 // in which the group ran
	Throttled uint64 // in which the group was stopped for the rest of the period
	Bursts    uint64 // in which the group used burst
	Time      time.Duration
	BurstTime time.Duration
}

// Throttled reads the group's cpu.stat.
func (g *Group) Throttled() (Throttling, error) {
	text, err := g.read(statFile)
	if err != nil {
		return Throttling{}, err
	}
	return parseThrottling(text), nil
}

func parseThrottling(text string) Throttling {
	var t Throttling
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseUint(value, 10, 63)
		if err != nil {
			continue
		}
		switch key {
		case "nr_periods":
			t.Periods = n
		case "nr_throttled":
			t.Throttled = n
		case "nr_bursts":
			t.Bursts = n
		case "throttled_time":
			t.Time = time.Duration(n)
		case "burst_time":
			t.BurstTime = time.Duration(n)
		case "throttled_usec":
			t.Time = time.Duration(n) * time.Microsecond
		case "burst_usec":
			t.BurstTime = time.Duration(n) * time.Microsecond
		}
	}
	return t
}

// OneHierarchy tells whether Usage counts all processes in the group, including helpers in
// HelperGroup. If cpu and cpuacct are mounted apart, Usage counts only the container's own
// processes.
func (g *Group) OneHierarchy() bool {
	return g.all.cpu.v2 || g.all.cpu.mount == g.all.cpuacct.mount
}

// Usage returns the CPU time that the group and its child groups have used since they were made.
// The kernel updates it at each tick and each context switch. If only a process can show which
// cpuacct group counts the time, Usage returns 0 until the group has a process, and then the time
// since.
func (g *Group) Usage() (time.Duration, error) {
	if g.all.cpu.v2 {
		text, err := g.read(statFile)
		if err != nil {
			return 0, err
		}
		value, _, _ := strings.Cut(strings.TrimPrefix(text, "usage_usec "), "\n")
		d, err := micros(value)
		if err != nil {
			return 0, fmt.Errorf("read usage of %s: %w", g.path, err)
		}
		return d, nil
	}
	switch err := g.findCounting(); {
	case errors.Is(err, ErrEmpty):
		g.mu.Lock()
		defer g.mu.Unlock()
		g.unused = true
		return 0, nil
	case err != nil:
		return 0, err
	}
	text, err := g.read(usageFile)
	if errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrGone) {
		// Runtimes remove a container's groups in one hierarchy after the other.
		err = fmt.Errorf("%w: %w", ErrGone, err)
	}
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, fmt.Errorf("read usage of %s: %w", g.path, err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.unused {
		g.unused, g.before = false, n
	}
	return time.Duration(n - g.before), nil
}

// findCounting finds the group's counterpart in the hierarchy of cpuacct, if that is another one.
// It asks a process of the group first. Without an answer it takes the same path: engines give a
// container the same path in all hierarchies.
func (g *Group) findCounting() error {
	g.mu.Lock()
	found := g.counting != 0
	g.mu.Unlock()
	if found || g.OneHierarchy() {
		return nil
	}
	rel, err := g.counterpart(&g.all.cpuacct)
	if err != nil {
		rel = g.rel()
		if _, statErr := os.Stat(filepath.Join(g.all.cpuacct.mount, rel)); g.Root() || statErr != nil {
			return fmt.Errorf("find the cpuacct group of %s: %w", g.path, err)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || g.counting != 0 {
		return nil
	}
	dir, err := unix.Open(filepath.Join(g.all.cpuacct.mount, rel), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the cpuacct group of %s: %w", g.path, err)
	}
	g.counting = dir
	return nil
}

// Pressure is the time for which the group's processes waited for a CPU: the share of the last 10,
// 60 and 300 seconds in percent, and the sum.
type Pressure struct {
	Avg10, Avg60, Avg300 float64
	Total                time.Duration
}

// Pressure reads the group's own pressure. It returns false if the kernel has none for the group
// (no cgroup v2, no PSI). The pressure of the whole machine would say nothing about a group.
func (g *Group) Pressure() (Pressure, bool, error) {
	dir := g.path
	if !g.all.cpu.v2 {
		if g.all.unified.mount == "" {
			return Pressure{}, false, nil
		}
		rel, err := g.counterpart(&g.all.unified)
		if err != nil {
			return Pressure{}, false, nil //nolint:nilerr // the container has no v2 group of its own
		}
		dir = filepath.Join(g.all.unified.mount, rel)
	}
	text, err := os.ReadFile(filepath.Join(dir, "cpu.pressure"))
	if err != nil {
		return Pressure{}, false, nil //nolint:nilerr // a kernel without PSI
	}
	p, err := parsePressure(string(text))
	return p, err == nil, err
}

func parsePressure(text string) (Pressure, error) {
	var p Pressure
	var total int64
	_, err := fmt.Sscanf(text, "some avg10=%g avg60=%g avg300=%g total=%d", &p.Avg10, &p.Avg60, &p.Avg300, &total)
	if err != nil {
		return Pressure{}, fmt.Errorf("read pressure %q: %w", text, err)
	}
	p.Total = time.Duration(total) * time.Microsecond
	return p, nil
}
