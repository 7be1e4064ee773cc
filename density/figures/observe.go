package figures

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// observation has the kernel's counters of the machine and of a crowd's quotas.
type observation struct {
	at           time.Time
	stalled      map[string]float64 // by resource: microseconds in which at least one program waited for it
	busy         float64            // CPU time that was not idle, in ticks
	softirq      float64            // the part of busy in softirqs
	throttled    int64              // throttled periods of the crowd's containers
	throttledFor time.Duration
}

// observe reads the machine's counters.
func observe() (observation, error) {
	o := observation{at: time.Now(), stalled: make(map[string]float64)}
	for _, resource := range []string{"cpu", "io", "memory"} {
		us, err := readPressure("/proc/pressure/" + resource)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EOPNOTSUPP) {
			continue // a kernel without PSI, or booted with psi=0
		}
		if err != nil {
			return o, err
		}
		o.stalled[resource] = us
	}
	var err error
	o.busy, o.softirq, err = readBusy("/proc/stat")
	return o, err
}

// since returns the difference between two observations, as in Point.Extra. psi_cpu, psi_io and
// psi_memory are the percentage of the time in which some program waited for the resource ("some"
// of PSI). They cover exactly that time, not the last ten seconds. softirq_share is the softirqs'
// part of the used CPU time.
func (o observation) since(before observation) map[string]float64 {
	extra := make(map[string]float64)
	took := o.at.Sub(before.at)
	for resource, us := range o.stalled {
		extra["psi_"+resource] = min(100, 100*(us-before.stalled[resource])/float64(took.Microseconds()))
	}
	if busy := o.busy - before.busy; busy > 0 {
		extra["softirq_share"] = (o.softirq - before.softirq) / busy
	}
	extra["nr_throttled"] = float64(o.throttled - before.throttled)
	extra["throttled_ms"] = milliseconds(o.throttledFor - before.throttledFor)
	return extra
}

// readPressure reads the total of the line "some" of a pressure file.
func readPressure(file string) (float64, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if rest, some := strings.CutPrefix(line, "some "); some {
			_, total, _ := strings.Cut(rest, "total=")
			return strconv.ParseFloat(strings.TrimSpace(total), 64)
		}
	}
	return 0, fmt.Errorf("read %s: no line of some", file)
}

// readBusy reads the CPU time of the machine. The columns are user, nice, system, idle, iowait,
// irq, softirq and steal. The first two contain the guests' time.
func readBusy(file string) (busy, softirq float64, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, 0, err
	}
	line, _, _ := strings.Cut(string(data), "\n")
	fields := strings.Fields(line)
	if len(fields) < 8 || fields[0] != "cpu" {
		return 0, 0, fmt.Errorf("read %s: first line is %.100q", file, line)
	}
	for i, text := range fields[1:8] {
		ticks, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("read %s: %w", file, err)
		}
		if i != 3 && i != 4 {
			busy += ticks
		}
		if i == 6 {
			softirq = ticks
		}
	}
	return busy, softirq, nil
}
