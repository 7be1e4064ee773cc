package modes

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/tsugiki/tsugiki/internal/sys/proc"
)

// MachineCPU is the CPU time that the whole machine has spent on anything.
// Idle and iowait are no work, steal is somebody else's, guest time is already
// in user time. On a machine that others use too, theirs is in it.
func MachineCPU() (time.Duration, error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("read CPU time of the machine: %w", err)
	}
	line, _, _ := bytes.Cut(data, []byte("\n"))
	// cpu user nice system idle iowait irq softirq …
	d, err := sumTicks(bytes.Fields(line), 1, 2, 3, 6, 7)
	if err != nil {
		return 0, fmt.Errorf("read CPU time of the machine: %w", err)
	}
	return d, nil
}

// ProcessCPU is the CPU time of a running process and of those of its children
// that it has waited for.
func ProcessCPU(pid int) (time.Duration, error) {
	s, err := proc.ReadStat(pid)
	if err != nil {
		return 0, fmt.Errorf("read CPU time of process %d: %w", pid, err)
	}
	return s.CPU(), nil
}

func sumTicks(fields [][]byte, columns ...int) (time.Duration, error) {
	var sum time.Duration
	for _, c := range columns {
		if c >= len(fields) {
			return 0, fmt.Errorf("%d columns, want more than %d", len(fields), c)
		}
		n, err := strconv.ParseInt(string(fields[c]), 10, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(n) * proc.Tick
	}
	return sum, nil
}
