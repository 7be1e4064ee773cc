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

// Throttling is how often the limit was felt, since the group was made.
type Throttling struct {
	Periods   uint64 // in which the group ran
	Throttled uint64 // of these, in which it was stopped for the rest
	Bursts    uint64 // of these, in which it used burst
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

// OneHierarchy tells whether Usage counts exactly what is in the group, also helpers
// that were placed in HelperGroup. Where cpu and cpuacct are mounted apart, it
// counts the container's processes alone.
func (g *Group) OneHierarchy() bool {
	return g.all.cpu.v2 || g.all.cpu.mount == g.all.cpuacct.mount
}

// Usage is the CPU time that the group and those below it have used since they were
// made. The kernel brings it up to date at each tick and each switch. Where a process
// has to tell which group counts it, it is 0 until there is one, and then the time since.
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
		// Runtimes remove the group of one hierarchy after another.
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

// findCounting finds the group's counterpart in the hierarchy of cpuacct, where that is
// another one. Engines give the groups of a container the same path everywhere; a
// process knows better.
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

// Pressure is how much the group's processes waited for a CPU: the share of the last
// 10, 60 and 300 seconds in percent, and the sum.
type Pressure struct {
	Avg10, Avg60, Avg300 float64
	Total                time.Duration
}

// Pressure is the group's own; false where the kernel knows none (no cgroup v2, no
// PSI), for that of the machine says nothing about a group.
func (g *Group) Pressure() (Pressure, bool, error) {
	dir := g.path
	if !g.all.cpu.v2 {
		if g.all.unified.mount == "" {
			return Pressure{}, false, nil
		}
		rel, err := g.counterpart(&g.all.unified)
		if err != nil {
			return Pressure{}, false, nil //nolint:nilerr // it has none of its own
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
