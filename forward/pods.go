package forward

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bpf"
)

// Add enters a pod and attaches the programs to its links, which must exist. Packets of the
// pod are checked from then on; other pods reach it directly when Add returns. An error is a
// ClashError, ErrFull, or the kernel's. After an error the pod is not in the table.
func (t *Table) Add(p Pod) error {
	if len(p.Addrs) == 0 || len(p.Addrs) > AddrsMax {
		return fmt.Errorf("a pod has 1 to %d addresses, not %d", AddrsMax, len(p.Addrs))
	}
	return t.locked(func() error { return t.add(p) })
}

func (t *Table) add(p Pod) (err error) {
	device := uint32(p.Device)
	if err := t.maps.PodByDevice.Update(device, row(p), ebpf.UpdateNoExist); err != nil {
		if errors.Is(err, ebpf.ErrKeyExist) {
			return &ClashError{Address: "of the link itself", Device: p.Device}
		}
		return fmt.Errorf("enter pod of link %d: %w", p.Device, full(err))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.remove(p.Device))
		}
	}()
	if err := t.addTables(device); err != nil {
		return err
	}
	if err := t.attach(p); err != nil {
		return err
	}
	return t.enter(p)
}

// addTables gives a pod its counts and its table of flows.
func (t *Table) addTables(device uint32) error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	if err := t.maps.CountsByDevice.Put(device, make([]bpf.ForwardCounts, cpus)); err != nil {
		return fmt.Errorf("make counts of link %d: %w", device, full(err))
	}
	spec, err := bpf.LoadForward()
	if err != nil {
		return err
	}
	inner := spec.Maps["flows_by_device"].InnerMap
	inner.MaxEntries = flowEntries(inner.MaxEntries, cpus)
	flows, err := ebpf.NewMap(inner)
	if err != nil {
		return fmt.Errorf("make table of flows of link %d: %w", device, err)
	}
	defer flows.Close()
	if err := t.maps.FlowsByDevice.Put(device, flows); err != nil {
		return fmt.Errorf("enter table of flows of link %d: %w", device, full(err))
	}
	return nil
}

// flowEntries is the size of a table that keeps the last flows of a pod. The kernel can give each
// processor this many entries that nobody else uses, and not evict as many that it was given
// before (LOCAL_FREE_TARGET, kernel/bpf/bpf_lru_list.c). A table has no more than 1 MB: a pod whose
// packets many processors forward at a time forgets flows earlier there.
func flowEntries(flows uint32, cpus int) uint32 {
	const share, cpusMax = 128, 32
	return flows + 2*share*uint32(min(cpus, cpusMax))
}

// enter has other pods find the pod.
func (t *Table) enter(p Pod) error {
	device := uint32(p.Device)
	if p.Wire != 0 {
		if err := t.maps.DeviceByWire.Put(uint32(p.Wire), device); err != nil {
			return fmt.Errorf("enter wire %d: %w", p.Wire, full(err))
		}
	}
	if err := t.claim(t.maps.DeviceByMac, macKey(p), device, net.HardwareAddr(p.MAC[:]).String()); err != nil {
		return err
	}
	for _, a := range p.Addrs {
		if err := t.claim(t.maps.DeviceByAddr, addrKey(p.Network, a), device, a.String()); err != nil {
			return err
		}
	}
	return nil
}

// claim enters an address. If a pod whose link is gone has the address, claim removes that pod: its
// network plugin was not called, or died. A row that leads to no pod belongs to nobody.
func (t *Table) claim(m *ebpf.Map, key any, device uint32, address string) error {
	for {
		err := m.Update(key, device, ebpf.UpdateNoExist)
		if !errors.Is(err, ebpf.ErrKeyExist) {
			if err != nil {
				err = fmt.Errorf("enter address %s: %w", address, full(err))
			}
			return err
		}
		var other uint32
		if err := m.Lookup(key, &other); errors.Is(err, ebpf.ErrKeyNotExist) {
			continue
		} else if err != nil {
			return fmt.Errorf("look up address %s: %w", address, err)
		}
		there, err := t.lives(int(other))
		if err != nil {
			return fmt.Errorf("look for pod of link %d: %w", other, err)
		}
		if there {
			return &ClashError{Address: address, Device: int(other)}
		}
		if err := errors.Join(t.remove(int(other)), t.release(m, key, other)); err != nil {
			return err
		}
	}
}

// lives tells whether the table has a pod, and the namespace its link.
func (t *Table) lives(device int) (bool, error) {
	if _, err := t.Pod(device); err != nil {
		return false, ignore(err, ErrUnknown)
	}
	return exists(device)
}

// Remove removes a pod, first where others find it. The programs stay attached to its link and
// drop what the pod still sends. A pod that is not there is no error.
func (t *Table) Remove(device int) error {
	return t.locked(func() error { return t.remove(device) })
}

func (t *Table) remove(device int) error {
	key := uint32(device)
	var r bpf.ForwardPod
	err := t.maps.PodByDevice.Lookup(key, &r)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up pod of link %d: %w", device, err)
	}
	p := podOf(r)
	errs := []error{t.release(t.maps.DeviceByMac, macKey(p), key)}
	for _, a := range p.Addrs {
		errs = append(errs, t.release(t.maps.DeviceByAddr, addrKey(p.Network, a), key))
	}
	if p.Wire != 0 {
		errs = append(errs, t.release(t.maps.DeviceByWire, uint32(p.Wire), key))
	}
	errs = append(errs, t.removePairs(key))
	// The pod's own row is the last: as long as it is there, Remove can be called again.
	for _, m := range []*ebpf.Map{t.maps.FlowsByDevice, t.maps.CountsByDevice, t.maps.ToldByDevice, t.maps.UntoldByDevice} {
		errs = append(errs, ignore(m.Delete(key), ebpf.ErrKeyNotExist))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove pod of link %d: %w", device, err)
	}
	return ignore(t.maps.PodByDevice.Delete(key), ebpf.ErrKeyNotExist)
}

// release removes an address if it is this pod's.
func (t *Table) release(m *ebpf.Map, key any, device uint32) error {
	var owner uint32
	err := m.Lookup(key, &owner)
	if err == nil && owner == device {
		err = m.Delete(key)
	}
	return ignore(err, ebpf.ErrKeyNotExist)
}

// Sweep removes pods whose links are gone, and what killed traces have left.
func (t *Table) Sweep() error {
	return t.locked(func() error { return errors.Join(t.sweep(), t.sweepTraces()) })
}

func (t *Table) sweep() error {
	pods, err := t.Pods()
	if err != nil {
		return err
	}
	for _, p := range pods {
		there, err := exists(p.Device)
		if err == nil && !there {
			err = t.remove(p.Device)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Pods lists all pods, in no order.
func (t *Table) Pods() ([]Pod, error) {
	var list []Pod
	var key uint32
	var r bpf.ForwardPod
	for rows := t.maps.PodByDevice.Iterate(); ; list = append(list, podOf(r)) {
		if !rows.Next(&key, &r) {
			if err := rows.Err(); err != nil {
				return nil, fmt.Errorf("list pods: %w", err)
			}
			return list, nil
		}
	}
}

// Pod returns one pod, or ErrUnknown.
func (t *Table) Pod(device int) (Pod, error) {
	var r bpf.ForwardPod
	if err := t.maps.PodByDevice.Lookup(uint32(device), &r); errors.Is(err, ebpf.ErrKeyNotExist) {
		return Pod{}, ErrUnknown
	} else if err != nil {
		return Pod{}, fmt.Errorf("look up pod of link %d: %w", device, err)
	}
	return podOf(r), nil
}

// Found returns which address of a pod does not lead to it; nil if all do.
func (t *Table) Found(p Pod) error {
	check := func(m *ebpf.Map, key any, what string) error {
		var owner uint32
		if err := ignore(m.Lookup(key, &owner), ebpf.ErrKeyNotExist); err != nil {
			return fmt.Errorf("look up %s: %w", what, err)
		}
		if int(owner) != p.Device {
			return fmt.Errorf("%s does not lead to the pod of link %d in the table", what, p.Device)
		}
		return nil
	}
	err := check(t.maps.DeviceByMac, macKey(p), "MAC address "+net.HardwareAddr(p.MAC[:]).String())
	for _, a := range p.Addrs {
		err = errors.Join(err, check(t.maps.DeviceByAddr, addrKey(p.Network, a), "address "+a.String()))
	}
	if p.Wire != 0 {
		err = errors.Join(err, check(t.maps.DeviceByWire, uint32(p.Wire), fmt.Sprintf("wire %d", p.Wire)))
	}
	return err
}

// SetDirect switches direct forward of a pod on or off, in both directions. Flows that went
// directly go on through the switch.
func (t *Table) SetDirect(device int, on bool) error {
	return t.locked(func() error { return t.change(device, func(p *Pod) { p.Direct = on }) })
}

// change changes a pod's row. The table is locked.
func (t *Table) change(device int, change func(*Pod)) error {
	p, err := t.Pod(device)
	if err != nil {
		return err
	}
	change(&p)
	err = t.maps.PodByDevice.Update(uint32(device), row(p), ebpf.UpdateExist)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return ErrUnknown
	}
	return err
}

func full(err error) error {
	if errors.Is(err, unix.E2BIG) {
		return ErrFull
	}
	return err
}

// flags are the flags of a pod, and where its structure has them.
func flags(p *Pod) map[bpf.ForwardPodFlag]*bool {
	return map[bpf.ForwardPodFlag]*bool{
		bpf.ForwardPodFlagPOD_DIRECT: &p.Direct, bpf.ForwardPodFlagPOD_CHECKED: &p.Checked,
		bpf.ForwardPodFlagPOD_ALL_PAIRS: &p.AllPairs, bpf.ForwardPodFlagPOD_TRACED: &p.Traced,
	}
}

func row(p Pod) bpf.ForwardPod {
	r := bpf.ForwardPod{
		Device: uint32(p.Device), Network: p.Network, Wire: uint32(p.Wire), Mac: p.MAC, Gateway: p.Gateway,
	}
	for i, a := range p.Addrs {
		r.Addrs[i] = words(a)
	}
	for flag, set := range flags(&p) {
		if *set {
			r.Flags |= flag
		}
	}
	if p.Gateway != [6]byte{} {
		r.Flags |= bpf.ForwardPodFlagPOD_ROUTED
	}
	return r
}

func podOf(r bpf.ForwardPod) Pod {
	p := Pod{
		Device: int(r.Device), Network: r.Network, Wire: int(r.Wire), MAC: r.Mac, Gateway: r.Gateway,
	}
	for _, w := range r.Addrs {
		if w != (bpf.ForwardPodAddr{}) {
			p.Addrs = append(p.Addrs, addrOf(w))
		}
	}
	for flag, set := range flags(&p) {
		*set = r.Flags&flag != 0
	}
	return p
}

// words has the address's bytes in network byte order, an IPv4 address mapped.
func words(a netip.Addr) bpf.ForwardPodAddr {
	b := a.As16()
	return bpf.ForwardPodAddr{Word: *(*[4]uint32)(unsafe.Pointer(&b))}
}

func addrOf(w bpf.ForwardPodAddr) netip.Addr {
	return netip.AddrFrom16(*(*[16]byte)(unsafe.Pointer(&w.Word))).Unmap()
}

func macKey(p Pod) bpf.ForwardMacKey {
	return bpf.ForwardMacKey{Network: p.Network, Mac: p.MAC}
}

func addrKey(network uint32, a netip.Addr) bpf.ForwardAddrKey {
	return bpf.ForwardAddrKey{Network: network, Addr: words(a)}
}
