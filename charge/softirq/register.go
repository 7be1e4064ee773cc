package softirq

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bpf"
)

// group is a registered cgroup: receiving by its sockets is charged to the owner.
type group struct {
	owner uint32
	link  link.Link
}

// Interface charges the packets that a network interface receives to an owner. netns is the inode
// of the interface's network namespace. ifindex is its number there. For a veth pair, register the
// end in the container.
func (m *Meter) Interface(netns uint64, ifindex int, owner uint32) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := bpf.SoftirqReceiveDevice{Netns: uint32(netns), Ifindex: uint32(ifindex)}
	slot, err := m.owners.Hold(owner)
	if err == nil {
		err = m.attach()
	}
	if err == nil {
		err = m.objects.SlotByDevice.Put(key, slot)
	}
	if err != nil {
		m.owners.Release(owner)
		return fmt.Errorf("measure interface %d of namespace %d: %w", ifindex, netns, errors.Join(err, m.rest()))
	}
	m.owners.Release(m.interfaces[key])
	m.interfaces[key] = owner
	return nil
}

// ForgetInterface ends the registration of an interface, unless another owner has registered it
// since.
func (m *Meter) ForgetInterface(netns uint64, ifindex int, owner uint32) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := bpf.SoftirqReceiveDevice{Netns: uint32(netns), Ifindex: uint32(ifindex)}
	if m.interfaces[key] != owner {
		return nil
	}
	if err := m.objects.SlotByDevice.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("forget interface %d of namespace %d: %w", ifindex, netns, err)
	}
	delete(m.interfaces, key)
	m.owners.Release(owner)
	return m.rest()
}

// CPUGroup registers a group of the cpu controller. The kernel bills receiving to the task that it
// interrupts. If the task is in this group, or in a group up to seven levels below, the owner gets
// a credit for the packets of others. ino is the inode of the group's directory, in a v1 hierarchy
// or in cgroup v2.
func (m *Meter) CPUGroup(ino uint64, owner uint32) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	slot, err := m.owners.Hold(owner)
	if err == nil {
		err = m.objects.SlotByCpuGroup.Put(ino, slot)
	}
	if err != nil {
		m.owners.Release(owner)
		return fmt.Errorf("measure cpu group %d: %w", ino, err)
	}
	m.owners.Release(m.cpuGroups[ino])
	m.cpuGroups[ino] = owner
	return nil
}

// ForgetCPUGroup ends the registration of a cpu group, unless another owner has registered it since.
func (m *Meter) ForgetCPUGroup(ino uint64, owner uint32) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cpuGroups[ino] != owner {
		return nil
	}
	if err := m.objects.SlotByCpuGroup.Delete(ino); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("forget cpu group %d: %w", ino, err)
	}
	delete(m.cpuGroups, ino)
	m.owners.Release(owner)
	return nil
}

// Group charges the packets that reach a cgroup's sockets to an owner, on any interface: a grafted
// container's sockets are on the host's interfaces. dir is a directory of cgroup v2. A socket
// belongs to the cgroup in which it was created.
func (m *Meter) Group(dir *os.File, owner uint32) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	id, err := inode(dir)
	if err != nil {
		return fmt.Errorf("measure group %s: %w", dir.Name(), err)
	}
	if err := m.dropGroup(id); err != nil {
		return err
	}
	slot, err := m.owners.Hold(owner)
	if err != nil {
		return fmt.Errorf("measure group %s: %w", dir.Name(), err)
	}
	l, err := m.attachGroup(dir, id, slot)
	if err != nil {
		m.owners.Release(owner)
		return fmt.Errorf("measure group %s: %w", dir.Name(), err)
	}
	m.groups[id] = group{owner, l}
	return nil
}

func (m *Meter) attachGroup(dir *os.File, id uint64, slot uint32) (link.Link, error) {
	l, err := link.AttachCgroup(link.CgroupOptions{
		Path: fmt.Sprintf("/proc/self/fd/%d", dir.Fd()), Attach: ebpf.AttachCGroupInetIngress, Program: m.objects.ReceiveSocket,
	})
	if err != nil {
		return nil, err
	}
	// Attaching makes the group's storage, without a slot in it.
	if err = m.objects.SlotOfGroup.Put(id, slot); err == nil {
		err = m.attach()
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// ForgetGroup ends the registration of a cgroup, unless another owner has registered it since. ino
// is the inode of the cgroup, which may have been removed.
func (m *Meter) ForgetGroup(ino uint64, owner uint32) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.groups[ino].owner != owner {
		return nil
	}
	if err := m.dropGroup(ino); err != nil {
		return err
	}
	return m.rest()
}

// dropGroup detaches the program from a cgroup. The caller holds m.mu.
func (m *Meter) dropGroup(ino uint64) error {
	g, known := m.groups[ino]
	if !known {
		return nil
	}
	delete(m.groups, ino)
	m.owners.Release(g.owner)
	if err := g.link.Close(); err != nil {
		return fmt.Errorf("forget group %d: %w", ino, err)
	}
	return nil
}

// inode returns the inode of a cgroup's directory. It is also the kernel's id of the cgroup.
func inode(dir *os.File) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return 0, err
	}
	return st.Ino, nil
}
