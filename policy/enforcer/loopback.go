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

// loopbackBit is in the id of each loopback: as a packet's priority it is one that no program
// can set without CAP_NET_ADMIN.
const loopbackBit = 1 << 31

// privateMax is how many private ports a loopback may have at a time.
const privateMax = 1024

// Kinds of rows, enum service_kind of the BPF programs.
const (
	served6 = iota
	served4
	served6As
	served4As
	private
	privateAs
)

// loopback has the rows of one.
type loopback struct {
	rows    rows[bpf.PolicyService]
	members map[*Enforcement]struct{} // guarded by loopbacks.mu

	changing sync.Mutex // held while rows of a port are read and then changed
}

// loopbacks are those of the containers that this process has, by id.
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

// UseLoopback puts the container's loopback on the host, from now on. The namespace is that
// of the programs: who is in the same one has the same loopback.
func (e *Enforcement) UseLoopback(netns uint64) error {
	id := uint32(netns) | loopbackBit
	e.join(id, nil)
	if err := e.change(func(c *bpf.PolicyContainer) { c.Loopback = id }); err != nil {
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

// join makes the container one of those of a loopback. keys are the rows that it has by now,
// if nobody else in this process is there yet.
func (e *Enforcement) join(id uint32, keys []bpf.PolicyService) {
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
	e.loopback, e.loopbackID = l, id
}

// leaveLoopback ends the container's share of its loopback, and tells whether it was the last.
// Where the container ends, clearLoopback is then to be called.
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

// clearLoopback takes the rows of the container's loopback away, unless another has come.
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

// PrivatePort is the port of the host in whose place the container's programs know a port of
// their loopback. Where there is none, or it is the one that is no longer theirs, it becomes the
// one that is offered. If that is 0, or is in the place of another of their ports, there is none: 0.
// inUse returns which ports of the host a socket of
// a protocol has: where there is no room for another private port, those that none has are forgotten.
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
	// The way back first: a program that connects meanwhile sees no other name.
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

// makeRoom makes room for one more private port. With l.changing held.
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

// forgetUnused deletes the rows of a private port, unless it is in use. With l.changing held.
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

// serveOnLoopback is Serve for a container whose loopback is on the host.
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

// services are the rows of the container's servers.
func (e *Enforcement) services() *rows[bpf.PolicyService] {
	if e.loopback != nil {
		return &e.loopback.rows
	}
	return &e.rows.services
}

// ServeNames leads what the container sends to port 53 of any address to port 53 of its loopback,
// from now on. The loopback has to be on the host.
func (e *Enforcement) ServeNames() error {
	if err := e.change(func(c *bpf.PolicyContainer) { c.Resolves = 1 }); err != nil {
		return fmt.Errorf("lead questions for names to the loopback: %w", err)
	}
	return nil
}
