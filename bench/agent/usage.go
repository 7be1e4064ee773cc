package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/keeper"
)

// What a container of each kind together takes at most, to check for before they are
// started: three programs, a gate, a keeper for a while, links and rules.
const (
	roomKiB       = 8 << 10
	roomProcesses = 8
	roomFiles     = 40 // of the agent's, and ours
)

// checkRoom refuses what the machine has no room for, and says what there is.
func (n *node) checkRoom(containers int) (string, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return "", err
	}
	available, err := field("/proc/meminfo", "MemAvailable:")
	if err != nil {
		return "", err
	}
	pids, err := firstNumber("/proc/sys/kernel/pid_max")
	if err != nil {
		return "", err
	}
	running, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return "", err
	}
	free := pids - float64(len(running))
	said := fmt.Sprintf("room: %.1f GiB of memory, %.0f processes and %d files each; %d containers of %d kinds take at most %.1f GiB, %d and %d",
		available/(1<<20), free, limit.Cur, containers, len(kinds),
		float64(containers)*roomKiB/(1<<20), containers*roomProcesses, containers*roomFiles)
	if available < float64(containers*roomKiB) || free < float64(containers*roomProcesses) || limit.Cur < uint64(containers*roomFiles) {
		return "", fmt.Errorf("%s; choose a smaller -n", said)
	}
	return said, nil
}

// used is something that the running containers take.
type used struct {
	test, name, unit string
	kind             kind
	value            float64
}

// usage looks at what the agent, the helpers and the kernel hold for the containers.
func (n *node) usage(ctx context.Context, containers int) ([]used, error) {
	agent := n.agent.Process.Pid
	resident, err := field(fmt.Sprintf("/proc/%d/status", agent), "VmRSS:")
	if err != nil {
		return nil, err
	}
	held, err := testkit.ProcessUsage(agent)
	if err != nil {
		return nil, err
	}
	maps, err := mapMemory(agent)
	if err != nil {
		return nil, err
	}
	helpers, err := n.helpers()
	if err != nil {
		return nil, err
	}
	rules, err := n.output(n.top.Host.Command(ctx, "iptables-save"))
	if err != nil {
		return nil, err
	}
	each := func(total float64) float64 { return total / float64(containers) }
	list := []used{
		{"agent", "resident", "MiB", graft, resident / 1024},
		{"agent", "files", "", graft, float64(held.FDs)},
		{"agent", "threads", "", graft, float64(held.Threads)},
		{"per container", "bpf_maps", "KiB", graft, each(maps / 1024)},
		{"per container", "iptables_rules", "", bridge, each(float64(bytes.Count(rules, []byte("\n-A "))))},
	}
	for _, name := range []string{gate.Program, keeper.Program} {
		h := helpers[name]
		short := strings.TrimPrefix(name, "tsugiki-")
		list = append(list,
			used{"per container", short + "s", "", graft, each(float64(h.count))},
			used{"per container", short + "_pss", "KiB", graft, each(h.pss)})
	}
	return list, nil
}

// helper is what all processes of a program take together.
type helper struct {
	count int
	pss   float64 // KiB; what several share is divided among them
}

// helpers finds the processes that are in the rig's cgroup, by program.
func (n *node) helpers() (map[string]helper, error) {
	found := make(map[string]helper)
	err := filepath.WalkDir(n.rig.Group(), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "cgroup.procs" {
			return err
		}
		pids, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for pid := range strings.FieldsSeq(string(pids)) {
			name, err := os.ReadFile(filepath.Join("/proc", pid, "comm"))
			if err != nil {
				return err
			}
			pss, err := field(filepath.Join("/proc", pid, "smaps_rollup"), "Pss:")
			if err != nil {
				return err
			}
			h := found[strings.TrimSpace(string(name))]
			found[strings.TrimSpace(string(name))] = helper{h.count + 1, h.pss + pss}
		}
		return nil
	})
	return found, err
}

// mapMemory is what the kernel says that the BPF maps take that a process has open,
// in bytes.
func mapMemory(pid int) (float64, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	if err != nil {
		return 0, err
	}
	sizes := make(map[float64]float64) // by the map's id: it may be open several times
	for _, file := range files {
		id, err := field(file, "map_id:")
		if errors.Is(err, fs.ErrNotExist) {
			continue // no map, or closed since
		}
		if err != nil {
			return 0, err
		}
		if sizes[id], err = field(file, "memlock:"); err != nil {
			return 0, err
		}
	}
	var sum float64
	for _, size := range sizes {
		sum += size
	}
	return sum, nil
}

// field reads a number from a line of a file of the kernel's; without that line it is
// fs.ErrNotExist.
func field(file, name string) (float64, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == name {
			return strconv.ParseFloat(fields[1], 64)
		}
	}
	return 0, fmt.Errorf("%s in %s: %w", name, file, fs.ErrNotExist)
}

func firstNumber(file string) (float64, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(strings.TrimSpace(string(data)), 64)
}
