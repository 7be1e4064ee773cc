package policy

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/endpoint"
)

// ErrNotAdopted says that a cgroup has not the programs and maps that Enforce of
// this version makes.
var ErrNotAdopted = errors.New("another version's policy programs, or none, are attached")

// mapNameMax is how much of a map's name the kernel keeps (BPF_OBJ_NAME_LEN).
const mapNameMax = 15

// Adopt takes over what Enforce of an earlier process has attached to a cgroup,
// and left in force. t is the table that was in force, see Restore.
//
// It needs CAP_SYS_ADMIN, to open programs and maps by their ids.
func Adopt(cgroup *os.File, t *Table, find func(name string) *endpoint.Endpoint) (*Enforcement, error) {
	e := &Enforcement{table: t}
	if err := e.adopt(cgroup); err != nil {
		return nil, fmt.Errorf("take over policy of cgroup %s: %w", cgroup.Name(), err)
	}
	if err := e.named.restore(e.objs.NamedEndpoints, find); err != nil {
		e.Close()
		return nil, fmt.Errorf("take over policy of cgroup %s: %w", cgroup.Name(), err)
	}
	return e, nil
}

func (e *Enforcement) adopt(cgroup *os.File) error {
	spec, err := programs()
	if err != nil {
		return err
	}
	found, err := mapsOf(cgroup)
	defer func() {
		for _, m := range found {
			m.Close()
		}
	}()
	if err != nil {
		return err
	}
	theirs := map[string]*ebpf.Map{}
	for name, m := range spec.Maps {
		have := found[name[:min(len(name), mapNameMax)]]
		if have == nil {
			return fmt.Errorf("%w: no map %s", ErrNotAdopted, name)
		}
		m.MaxEntries = have.MaxEntries() // Enforce changes some
		theirs[name] = have
	}
	var kept struct {
		bpf.PolicyMaps
		bpf.PolicyVariables
	}
	err = spec.LoadAndAssign(&kept, &ebpf.CollectionOptions{MapReplacements: theirs})
	if errors.Is(err, ebpf.ErrMapIncompatible) {
		return fmt.Errorf("%w: %w", ErrNotAdopted, err)
	}
	e.objs.PolicyMaps, e.objs.PolicyVariables = kept.PolicyMaps, kept.PolicyVariables
	return err
}

// mapsOf opens the maps of the programs that are attached to a cgroup, by the names
// that the kernel knows.
func mapsOf(cgroup *os.File) (map[string]*ebpf.Map, error) {
	maps := map[string]*ebpf.Map{}
	for _, h := range hooks(&bpf.PolicyPrograms{}) {
		attached, err := link.QueryPrograms(link.QueryOptions{Target: int(cgroup.Fd()), Attach: h.at})
		if err != nil {
			return maps, err
		}
		if len(attached.Programs) != 1 {
			return maps, fmt.Errorf("%w: %d programs at %s", ErrNotAdopted, len(attached.Programs), h.at)
		}
		if err := addMapsOf(attached.Programs[0].ID, maps); err != nil {
			return maps, err
		}
	}
	return maps, nil
}

func addMapsOf(id ebpf.ProgramID, maps map[string]*ebpf.Map) error {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return err
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return err
	}
	ids, _ := info.MapIDs()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return err
		}
		info, err := m.Info()
		if err != nil || maps[info.Name] != nil {
			m.Close()
		} else {
			maps[info.Name] = m
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// restore reads the numbers that an earlier process gave out.
func (n *names) restore(rows *ebpf.Map, find func(name string) *endpoint.Endpoint) error {
	n.number = map[*endpoint.Endpoint]uint32{}
	var number uint32
	var row bpf.PolicyEndpointName
	each := rows.Iterate()
	for each.Next(&number, &row) {
		n.last = max(n.last, number)
		text, _, _ := bytes.Cut(row.Text[:], []byte{0})
		if ep := find(string(text)); ep != nil {
			n.number[ep] = number
		}
	}
	return each.Err()
}
