package enforcer

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/policy"
)

// A container's loopback on the host (bpf/loopback.h). Containers that share a network
// namespace share it, and with it the rows of its ports.

// loopbackBit is set in the id of each loopback. So no program can set such an id as a packet's
// priority without CAP_NET_ADMIN.
const loopbackBit = 1 << 31

// privateMax is the number of private ports that a loopback may have at a time.
const privateMax = 1024

// Kinds of rows, enum service_kind of the BPF programs.
const (
	served6 = iota
	served4
	served6As
	served4As
	private
	privateAs
	// publishedAs is the address at which a private port is published. The BPF programs do not read
	// these rows: they are for the next process (Datagrams.restore).
	publishedAs
)

// loopback has the rows of one loopback on the host.
type loopback struct {
	rows    rows[bpf.PolicyService]
	members map[*Enforcement]struct{} // guarded by loopbacks.mu
	names   bool                      // a member translates IPv4; guarded by loopbacks.mu

	changing sync.Mutex // held while rows of a port are read and then changed
}

// loopbacks has the loopbacks of this process's containers, by id.
var loopbacks struct {
	mu   sync.Mutex
	byID map[uint32]*loopback
}

// LoopbackOnHost tells whether a container of this process has put the loopback of a namespace on
// the host.
func LoopbackOnHost(netns uint64) bool {
	loopbacks.mu.Lock()
	defer loopbacks.mu.Unlock()
	l := loopbacks.byID[uint32(netns)|loopbackBit]
	return l != nil && len(l.members) > 0
}

// ServesNames tells whether a container of this process that has put the loopback of a namespace on
// the host translates IPv4.
func ServesNames(netns uint64) bool {
	loopbacks.mu.Lock()
	defer loopbacks.mu.Unlock()
	l := loopbacks.byID[uint32(netns)|loopbackBit]
	return l != nil && l.names
}

// UseLoopback puts the container's loopback on the host, from now on. netns is the namespace of the
// programs: containers in the same namespace have the same loopback.
func (e *Enforcement) UseLoopback(netns uint64) error {
	id := uint32(netns) | loopbackBit
	e.join(id, nil, false)
	if err := e.change(func(c *bpf.PolicyContainer) { c.Loopback, c.Mark = id, id }); err != nil {
		return fmt.Errorf("put loopback on the host: %w", err)
	}
	return nil
}

// SharesLoopback tells whether a cgroup's host sockets are of the container's loopback.
func (e *Enforcement) SharesLoopback(cgroup uint64) bool {
	loopbacks.mu.Lock()
	defer loopbacks.mu.Unlock()
	for member := range e.loopback.members {
		if member.cgroup == cgroup {
			return true
		}
	}
	return false
}

// join makes the container a member of a loopback. keys are the rows that the loopback has by now,
// if it has no other member in this process yet. names says that the container translates IPv4.
func (e *Enforcement) join(id uint32, keys []bpf.PolicyService, names bool) {
	loopbacks.mu.Lock()
	defer loopbacks.mu.Unlock()
	l := loopbacks.byID[id]
	if l == nil {
		l = &loopback{members: map[*Enforcement]struct{}{}}
		l.rows.table, l.rows.most = e.set.LocationByLoopback, servicesMax
		for _, key := range keys {
			l.rows.note(key)
		}
		if loopbacks.byID == nil {
			loopbacks.byID = map[uint32]*loopback{}
		}
		loopbacks.byID[id] = l
	}
	l.members[e] = struct{}{}
	l.names = l.names || names
	e.loopback, e.loopbackID = l, id
}

// leaveLoopback ends the container's share of its loopback, and tells whether it was the last. If
// the container ends, clearLoopback has to be called afterwards.
func (e *Enforcement) leaveLoopback(ends bool) (last bool) {
	loopbacks.mu.Lock()
	defer loopbacks.mu.Unlock()
	l := e.loopback
	if l == nil {
		return false
	}
	if _, member := l.members[e]; !member {
		return false
	}
	delete(l.members, e)
	for other := range l.members {
		l.rows.setTable(other.set.LocationByLoopback)
		return false
	}
	if !ends {
		delete(loopbacks.byID, e.loopbackID)
	}
	return true
}

// clearLoopback deletes the rows of the container's loopback, unless another container has joined.
func (e *Enforcement) clearLoopback() error {
	loopbacks.mu.Lock()
	defer loopbacks.mu.Unlock()
	l := e.loopback
	if len(l.members) > 0 || loopbacks.byID[e.loopbackID] != l {
		return nil
	}
	delete(loopbacks.byID, e.loopbackID)
	return l.rows.clear(l.rows.list())
}

// PrivatePort returns the private port on the host for a port of the container's loopback. If there
// is none, or if it is lost, offered becomes the private port. If offered is 0, or is the private
// port of another port, there is none and PrivatePort returns 0. inUse returns the ports of the
// host that sockets of a protocol have: if there is no room for another private port, unused ones
// are deleted.
func (e *Enforcement) PrivatePort(protocol int, port, lost, offered uint16, inUse func(protocol int) (map[uint16]bool, error)) (uint16, error) {
	l := e.loopback
	l.changing.Lock()
	defer l.changing.Unlock()
	key := e.portKey(private, protocol, port)
	var at bpf.PolicyLocation
	err := l.rows.lookup(key, &at)
	if err == nil && at.Port != lost {
		return at.Port, nil
	}
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return 0, fmt.Errorf("find private port of port %d: %w", port, err)
	}
	if offered == 0 {
		return 0, nil
	}
	back := e.portKey(privateAs, protocol, offered)
	var is bpf.PolicyLocation
	if err := l.rows.lookup(back, &is); err == nil && is.Port != port {
		return 0, nil
	} else if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return 0, fmt.Errorf("find the port of private port %d: %w", offered, err)
	}
	if err != nil {
		if err := l.makeRoom(inUse); err != nil {
			return 0, fmt.Errorf("give port %d a private one: %w", port, err)
		}
	}
	// The row for the way back comes first, so that a program that connects meanwhile sees no other
	// name.
	err = l.rows.put(back, bpf.PolicyLocation{Port: port})
	if err == nil {
		err = l.rows.put(key, bpf.PolicyLocation{Port: offered})
	}
	if err == nil && lost != 0 && lost != offered {
		err = l.rows.delete(e.portKey(privateAs, protocol, lost))
	}
	if err != nil {
		return 0, fmt.Errorf("give port %d a private one: %w", port, err)
	}
	return offered, nil
}

// IsPrivate tells whether a port of the host is a private port of the container's loopback.
func (e *Enforcement) IsPrivate(protocol int, port uint16) bool {
	var at bpf.PolicyLocation
	return e.loopback != nil && e.loopback.rows.lookup(e.portKey(privateAs, protocol, port), &at) == nil
}

// makeRoom makes room for one more private port. The caller holds l.changing.
func (l *loopback) makeRoom(inUse func(protocol int) (map[uint16]bool, error)) error {
	isPrivate := func(k bpf.PolicyService) bool { return k.Kind == private }
	if l.rows.count(isPrivate) < privateMax {
		return nil
	}
	for _, protocol := range []int{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		used, err := inUse(protocol)
		if err != nil {
			return err
		}
		for _, key := range l.rows.list() {
			if !isPrivate(key) || int(key.Protocol) != protocol {
				continue
			}
			if err := l.forgetUnused(key, used); err != nil {
				return err
			}
		}
	}
	if l.rows.count(isPrivate) >= privateMax {
		return errNoRoom
	}
	return nil
}

// forgetUnused deletes the rows of a private port, unless the port is in use. The caller holds
// l.changing.
func (l *loopback) forgetUnused(key bpf.PolicyService, used map[uint16]bool) error {
	var at, from bpf.PolicyLocation
	if err := l.rows.lookup(key, &at); err != nil || used[at.Port] {
		return err
	}
	back := key
	back.Kind, back.Port = privateAs, at.Port
	err := l.rows.lookup(back, &from)
	if err == nil && from.Port == key.Port {
		err = l.rows.delete(back)
	}
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return l.rows.delete(key)
}

// serveOnLoopback implements Serve for a container whose loopback is on the host.
func (e *Enforcement) serveOnLoopback(protocol int, kind uint8, b policy.Binding, row bpf.PolicyLocation) error {
	l := e.loopback
	l.changing.Lock()
	defer l.changing.Unlock()
	back := bpf.PolicyLocation{Addr: row.Addr, Port: b.View.Port()}
	var err error
	if any := b.Host.Addr().Unmap(); any.IsUnspecified() || any.IsLoopback() {
		back.Addr = wordsOf(netip.IPv6Unspecified())
		err = l.rows.put(e.portKey(privateAs, protocol, row.Port), back)
	} else {
		err = l.rows.put(e.portKey(kind+served6As, protocol, row.Port), back)
	}
	if err != nil {
		return err
	}
	return l.rows.put(e.portKey(kind, protocol, b.View.Port()), row)
}

func (e *Enforcement) portKey(kind uint8, protocol int, port uint16) bpf.PolicyService {
	key := bpf.PolicyService{Bits: serviceBits, Owner: e.id, Port: port, Protocol: uint8(protocol), Kind: kind}
	if e.loopback != nil {
		key.Owner = e.loopbackID
	}
	return key
}

// services returns the rows of the container's servers.
func (e *Enforcement) services() *rows[bpf.PolicyService] {
	if e.loopback != nil {
		return &e.loopback.rows
	}
	return &e.rows.services
}

// ServeNames leads all that the container sends to port 53 of any address to port 53 of its
// loopback, from now on. The loopback has to be on the host.
func (e *Enforcement) ServeNames() error {
	if err := e.change(func(c *bpf.PolicyContainer) { c.Resolves = 1 }); err != nil {
		return fmt.Errorf("lead questions for names to the loopback: %w", err)
	}
	loopbacks.mu.Lock()
	defer loopbacks.mu.Unlock()
	e.loopback.names = true
	return nil
}

// LoopbackID returns the priority of packets on the container's loopback on the host; 0: it has none.
func (e *Enforcement) LoopbackID() uint32 { return e.loopbackID }
