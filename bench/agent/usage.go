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

	"github.com/tsugiki/tsugiki/internal/sys/proc"

	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/keeper"
)

// used is something that the running containers take.
type used struct {
	test, name, unit string
	kind             kind
	value            float64
}

// usage looks at what the agent, the helpers and the kernel hold for the containers.
func (s *session) usage(ctx context.Context, containers int) ([]used, error) {
	agent := s.rig.Agent().PID()
	status, err := proc.Status(agent)
	if err != nil {
		return nil, err
	}
	resident, err := status.Bytes("VmRSS")
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
	programs, err := s.rig.Processes()
	if err != nil {
		return nil, err
	}
	rules, err := s.rig.Bridged(ctx, "iptables-save")
	if err != nil {
		return nil, err
	}
	each := func(total float64) float64 { return total / float64(containers) }
	list := []used{
		{"agent", "resident", "MiB", graft, float64(resident) / (1 << 20)},
		{"agent", "files", "", graft, float64(held.FDs)},
		{"agent", "threads", "", graft, float64(held.Threads)},
		{"per container", "bpf_maps", "KiB", graft, each(maps / 1024)},
		{"per container", "iptables_rules", "", bridge, each(float64(bytes.Count(rules, []byte("\n-A "))))},
	}
	for _, name := range []string{gate.Program, keeper.Program} {
		p := programs[name]
		short := strings.TrimPrefix(name, "tsugiki-")
		list = append(list,
			used{"per container", short + "s", "", graft, each(float64(p.Count))},
			used{"per container", short + "_pss", "KiB", graft, each(float64(p.PSS) / 1024)})
	}
	return list, nil
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
