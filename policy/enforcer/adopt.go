package enforcer

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/policy"
)

// ErrNotAdopted says that a cgroup does not have the programs and maps that Enforce of this version
// makes.
var ErrNotAdopted = errors.New("another version's policy programs, or none, are attached")

// mapNameMax is the length of a map's name that the kernel keeps (BPF_OBJ_NAME_LEN).
const mapNameMax = 15

// Adopt takes over the programs and maps that Enforce of an earlier process has attached to a
// cgroup, and that are still in force. t is the table that was in force, see policy.Restore. find returns the
// endpoint of a name that has a number, nil if it has gone; see Name.
//
// It needs CAP_SYS_ADMIN, to open programs and maps by their ids.
func Adopt(cgroup *os.File, t *policy.Table, find func(name string, number uint32) *endpoint.Endpoint) (*Enforcement, error) {
	e, err := adopt(cgroup, t)
	if err == nil {
		if err = errors.Join(e.named.restore(&e.rows.names, find), e.adoptOpened()); err != nil {
			err = errors.Join(err, e.Close())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("take over policy of cgroup %s: %w", cgroup.Name(), err)
	}
	return e, nil
}

func adopt(cgroup *os.File, t *policy.Table) (*Enforcement, error) {
	cgroupID, err := idOf(cgroup)
	if err != nil {
		return nil, err
	}
	s, err := adoptSet(cgroup)
	if err != nil {
		return nil, err
	}
	var row bpf.PolicyContainer
	var own tables
	var written *shared
	if err = s.ContainerByCgroup.Lookup(cgroupID, &row); err == nil {
		own, err = s.openTables(row.Id)
	}
	if err == nil {
		if written, err = s.findShared(row.Id); err != nil {
			err = errors.Join(err, own.close())
		}
	}
	if err != nil {
		return nil, errors.Join(err, s.leave())
	}
	e := enforcement(s, row.Id, own, t)
	e.rows = written
	if row.Loopback != 0 {
		e.join(row.Loopback, s.foundOnLoopback(row.Loopback), row.Resolves != 0)
	}
	e.own.row, e.own.attached = row, true
	e.cgroup = cgroupID
	if err := e.endFormerTrace(); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// adoptSet opens the set that is attached to a cgroup, and counts the caller as a user of it.
func adoptSet(cgroup *os.File) (*set, error) {
	found, err := mapsOf(cgroup)
	defer func() {
		for _, m := range found {
			m.Close()
		}
	}()
	if err != nil {
		return nil, err
	}
	sets.mu.Lock()
	defer sets.mu.Unlock()
	containers := found["container_by_cgroup"[:mapNameMax]]
	if containers == nil {
		return nil, fmt.Errorf("%w: no map container_by_cgroup", ErrNotAdopted)
	}
	id, err := mapID(containers)
	if err != nil {
		return nil, err
	}
	for s := range sets.open {
		if s.adopted == id {
			s.users++
			return s, nil
		}
	}
	s := &set{users: 1, adopted: id}
	if s.PolicyMaps, err = openMaps(found); err != nil {
		return nil, err
	}
	if err := s.closeTheirs(); err != nil {
		return nil, errors.Join(err, s.PolicyMaps.Close())
	}
	s.opened()
	return s, nil
}

func openMaps(found map[string]*ebpf.Map) (maps bpf.PolicyMaps, err error) {
	spec, err := parsed()
	if err != nil {
		return maps, err
	}
	theirs := map[string]*ebpf.Map{}
	for name := range spec.Maps {
		have := found[name[:min(len(name), mapNameMax)]]
		if have == nil {
			return maps, fmt.Errorf("%w: no map %s", ErrNotAdopted, name)
		}
		theirs[name] = have
	}
	err = spec.LoadAndAssign(&maps, &ebpf.CollectionOptions{MapReplacements: theirs})
	if errors.Is(err, ebpf.ErrMapIncompatible) {
		return maps, fmt.Errorf("%w: %w", ErrNotAdopted, err)
	}
	return maps, err
}

// mapsOf opens the maps of the programs that are attached to a cgroup, by the kernel's names for
// them.
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

// restore reads the numbers that an earlier process gave out. It withdraws endpoints that find does
// not know: the earlier process ended before it could withdraw them.
func (n *names) restore(rows *rows[bpf.PolicyNumber], find func(name string, number uint32) *endpoint.Endpoint) error {
	n.number = map[*endpoint.Endpoint]uint32{}
	for _, key := range rows.list() {
		var row bpf.PolicyEndpointName
		if err := rows.table.Lookup(key, &row); err != nil {
			return err
		}
		text, _, _ := bytes.Cut(row.Text[:], []byte{0})
		if key.Number == lastGiven {
			last, err := strconv.ParseUint(string(text), 10, 32)
			if err != nil {
				return fmt.Errorf("read the last number of an endpoint: %w", err)
			}
			n.last = max(n.last, uint32(last))
			continue
		}
		n.last = max(n.last, key.Number)
		if ep := find(string(text), key.Number); ep != nil {
			n.number[ep] = key.Number
		} else if err := rows.delete(key); err != nil {
			return fmt.Errorf("withdraw endpoint %s: %w", text, err)
		}
	}
	return nil
}
