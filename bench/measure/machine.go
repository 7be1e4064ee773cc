package measure

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine describes where figures come from.
type Machine struct {
	Kernel            string `json:"kernel"`
	CPUs              int    `json:"cpus"` // that this process may use
	CPUModel          string `json:"cpu_model"`
	CongestionControl string `json:"congestion_control"` // in every namespace of the run
	// Load is the load average of the last minute before the run: what others
	// were doing.
	Load float64 `json:"load_1min"`
}

func (m Machine) String() string {
	return fmt.Sprintf("Linux %s, %d CPUs (%s), load %.2f before the run, congestion control %s",
		m.Kernel, m.CPUs, m.CPUModel, m.Load, m.CongestionControl)
}

// ThisMachine describes the machine it runs on.
func ThisMachine(congestionControl string) (Machine, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return Machine{}, fmt.Errorf("describe machine: %w", err)
	}
	var cpus unix.CPUSet
	if err := unix.SchedGetaffinity(0, &cpus); err != nil {
		return Machine{}, fmt.Errorf("describe machine: %w", err)
	}
	load, err := LoadAverage()
	if err != nil {
		return Machine{}, fmt.Errorf("describe machine: %w", err)
	}
	return Machine{
		Kernel:            unix.ByteSliceToString(name.Release[:]),
		CPUs:              cpus.Count(),
		CPUModel:          cpuModel(),
		CongestionControl: congestionControl,
		Load:              load,
	}, nil
}

// LoadAverage returns the load average of the last minute.
func LoadAverage() (load float64, err error) {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, err
	}
	_, err = fmt.Sscan(string(data), &load)
	return load, err
}

// cpuModel is empty where the kernel does not say (many ARM machines).
func cpuModel() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ":")
		if strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
