// Package forward hands packets of a pod directly to another pod of the same node.
//
// It owns the table of the node's pods, which kernel programs read, and attaches the programs
// to the host's ends of the pods' links. It makes no link, knows no container, and decides
// nothing about pairs of pods. bpf/forward.bpf.c says what the programs do with a packet.
//
// The table is in the BPF file system, where short-lived processes find it: a network plugin
// writes rows and ends. The programs are owned by the links to which they are attached (tc,
// clsact): they end with their pods. Each network namespace has a table of its own, because
// the rows name links by their index.
//
// All functions have to be called on a thread that is in the host's network namespace. They
// need CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON (root has them), a BPF file system at
// /sys/fs/bpf, and Linux 5.12.
package forward

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/sys/lock"
)

// Folder is where tables are pinned: a folder for each network namespace.
var Folder = "/sys/fs/bpf/tsugiki-forward"

// layout is another one whenever programs of this version cannot use the last one's tables.
const layout = "1"

// Errors that callers distinguish.
var (
	// ErrNoTable says that no pod of this network namespace was ever added.
	ErrNoTable = errors.New("there is no table of pods; a pod that is attached with directForward or antiSpoof makes it")
	// ErrUnknown says that the table has no such pod.
	ErrUnknown = errors.New("no such pod in the table")
	// ErrFull says that the table has no room.
	ErrFull = errors.New("the table of pods is full (4096 pods, 65536 pairs with a verdict)")
)

// ClashError says that two pods of a network have the same address.
type ClashError struct {
	Address string
	Device  int // of the other pod
}

func (e *ClashError) Error() string {
	return fmt.Sprintf("the address %s is the pod's on link %d", e.Address, e.Device)
}

// AddrsMax is the number of IP addresses that a pod can have.
const AddrsMax = len(bpf.ForwardPod{}.Addrs)

// Pod is one that is attached to this node.
type Pod struct {
	Device  int    // index of the host's end of its link
	Network uint32 // pods of different networks are strangers
	MAC     [6]byte
	Addrs   []netip.Addr // 1 to AddrsMax
	// Wire is the index of the link that leads to a switch in user space or on another machine. 0:
	// packets that are not direct go to the bridge of Device, or to the host's routes.
	Wire int
	// Gateway is the MAC address of Device where the host routes for the pod; zero elsewhere.
	Gateway [6]byte
	// Direct is the pod's switch. Checked drops what does not come from the pod's addresses.
	// AllPairs has pairs without a verdict be direct, if both pods have it.
	// Traced has the kernel programs tell of its packets: see Table.Trace.
	Direct, Checked, AllPairs, Traced bool
}

// Table is the table of the network namespace in which it was opened.
type Table struct {
	dir      string // where it is pinned
	maps     bpf.ForwardMaps
	programs bpf.ForwardPrograms
}

// Open opens the table, and makes one if there is none.
func Open() (*Table, error) {
	dir, err := folder()
	if err != nil {
		return nil, err
	}
	if err := makeFolder(dir); err != nil {
		return nil, err
	}
	return load(dir)
}

// OpenExisting opens the table, or returns ErrNoTable.
func OpenExisting() (*Table, error) {
	dir, err := folder()
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(dir); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = ErrNoTable
		}
		return nil, err
	}
	return load(dir)
}

// folder is the namespace's.
func folder() (string, error) {
	ns, err := netns.Current()
	if err != nil {
		return "", err
	}
	return filepath.Join(Folder, fmt.Sprintf("%d-%s", ns.Cookie(), layout)), ns.Close()
}

// makeFolder makes a folder of the BPF file system that only root may use.
func makeFolder(dir string) error {
	var fs unix.Statfs_t
	at := filepath.Dir(Folder)
	if err := unix.Statfs(at, &fs); err != nil || fs.Type != unix.BPF_FS_MAGIC {
		return fmt.Errorf("there is no BPF file system at %s; mount one: mount -t bpf bpf %s", at, at)
	}
	for _, d := range []string{Folder, dir} {
		if err := os.Mkdir(d, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("make folder of the table of pods: %w", err)
		}
		var st unix.Stat_t
		if err := unix.Lstat(d, &st); err != nil {
			return fmt.Errorf("examine %s: %w", d, err)
		}
		if st.Uid != 0 || st.Mode != unix.S_IFDIR|0o700 {
			return fmt.Errorf("%s (user %d, mode %o) is not root's alone; remove it", d, st.Uid, st.Mode)
		}
	}
	return nil
}

// load opens what is pinned in a folder, and makes and pins what is not. Another process may
// do the same: who comes second uses what the first has pinned.
func load(dir string) (*Table, error) {
	spec, err := bpf.LoadForward()
	if err != nil {
		return nil, fmt.Errorf("read forward programs: %w", err)
	}
	for _, m := range spec.Maps {
		m.Pinning = ebpf.PinByName
	}
	for {
		t := &Table{dir: dir}
		err := spec.LoadAndAssign(&t.maps, &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: dir}})
		if errors.Is(err, os.ErrExist) {
			continue
		}
		if errors.Is(err, ebpf.ErrMapIncompatible) {
			return nil, fmt.Errorf("open table of pods in %s: %w; another version of tsugiki made it: drain the node and remove it", dir, err)
		}
		if err != nil {
			return nil, fmt.Errorf("open table of pods: %w", err)
		}
		if err := t.loadPrograms(spec, dir); err != nil {
			return nil, errors.Join(err, t.Close())
		}
		return t, nil
	}
}

// loadPrograms opens the pinned programs of this version, or loads and pins them.
func (t *Table) loadPrograms(spec *ebpf.CollectionSpec, dir string) error {
	own := &t.programs
	replace := map[string]*ebpf.Map{
		"pod_by_device": t.maps.PodByDevice, "device_by_mac": t.maps.DeviceByMac,
		"device_by_addr": t.maps.DeviceByAddr, "device_by_wire": t.maps.DeviceByWire,
		"verdict_by_pair": t.maps.VerdictByPair, "flows_by_device": t.maps.FlowsByDevice,
		"counts_by_device": t.maps.CountsByDevice, "told_by_device": t.maps.ToldByDevice,
		"untold_by_device": t.maps.UntoldByDevice,
	}
	digest := sha256.Sum256(bpf.ForwardObject())
	for name, p := range map[string]**ebpf.Program{
		"forward_from_pod": &own.ForwardFromPod, "forward_to_pod": &own.ForwardToPod,
		"forward_from_wire": &own.ForwardFromWire, "forward_end": &own.ForwardEnd,
	} {
		path := filepath.Join(dir, fmt.Sprintf("%s-%x", name, digest[:6]))
		found, err := ebpf.LoadPinnedProgram(path, nil)
		if errors.Is(err, os.ErrNotExist) {
			found, err = loadProgram(spec, name, replace)
			if err == nil {
				err = ignore(found.Pin(path), os.ErrExist)
			}
		}
		*p = found
		if err != nil {
			return fmt.Errorf("load program %s: %w", name, err)
		}
	}
	return nil
}

// loadProgram loads one program with the table's maps.
func loadProgram(spec *ebpf.CollectionSpec, name string, maps map[string]*ebpf.Map) (*ebpf.Program, error) {
	one := spec.Copy()
	one.Programs = map[string]*ebpf.ProgramSpec{name: one.Programs[name]}
	for _, m := range one.Maps {
		m.Pinning = ebpf.PinNone
	}
	c, err := ebpf.NewCollectionWithOptions(one, ebpf.CollectionOptions{MapReplacements: maps})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.DetachProgram(name), nil
}

// ignore returns an error unless it is one that is no mistake here.
func ignore(err, expected error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return err
}

// Close frees the descriptors. The table stays, as do the programs that are attached.
func (t *Table) Close() error { return errors.Join(t.maps.Close(), t.programs.Close()) }

// locked calls a function while no other process changes the table, nor another thread of this
// one. A pod is several rows, and an index that a link has left is soon another link's.
func (t *Table) locked(change func() error) error {
	dir, err := os.Open(t.dir)
	if err != nil {
		return fmt.Errorf("open table of pods: %w", err)
	}
	defer dir.Close()
	if err := lock.Wait(dir); err != nil {
		return fmt.Errorf("lock table of pods: %w", err)
	}
	return change()
}

// exists tells whether the namespace has a link.
func exists(device int) (bool, error) {
	_, err := netlink.LinkByIndex(device)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return false, nil
	}
	return err == nil, err
}
