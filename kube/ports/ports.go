// Package ports owns which pod of a node has which port of the node.
//
// It knows numbers and opens no socket: the agent reserves the ports. It needs no privilege and no
// particular kernel.
package ports

import (
	"fmt"
	"net/netip"
	"sync"

	"github.com/tsugiki/tsugiki/kube/grant"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// Free tells whether a port can be had: whether no other process of the node has it now.
type Free func(protocol v1alpha1.Protocol, at netip.AddrPort) bool

// Table has the ports of pods. A rule of a pod keeps its port until the pod is released, or until the
// port does not fit its endpoint any more.
type Table struct {
	free Free

	mu    sync.Mutex // guards what follows
	rules map[owner]netip.AddrPort
	ports map[uint16][]netip.Addr // at which addresses of the node a port is taken
	next  map[grant.Range]uint16  // where the search begins: ports are used again late
}

type owner struct{ pod, rule string }

// New makes a table. Without free, no other process has a port.
func New(free Free) *Table {
	if free == nil {
		free = func(v1alpha1.Protocol, netip.AddrPort) bool { return true }
	}
	return &Table{free: free, rules: map[owner]netip.AddrPort{}, ports: map[uint16][]netip.Addr{}, next: map[grant.Range]uint16{}}
}

// Take implements grant.Ports.
func (t *Table) Take(pod, rule string, protocol v1alpha1.Protocol, addr netip.Addr, within grant.Range) (uint16, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := owner{pod, rule}
	has, moves := t.rules[o]
	if moves && has.Addr() == addr && within.Contains(has.Port()) {
		return has.Port(), nil
	}
	begin := t.next[within]
	if !within.Contains(begin) {
		begin = within.First
	}
	size := int(within.Last-within.First) + 1
	for i := range size {
		port := within.First + uint16((int(begin-within.First)+i)%size)
		at := netip.AddrPortFrom(addr, port)
		if t.taken(at) || !t.free(protocol, at) {
			continue
		}
		if moves { // a server that still listens there has the port: free says so
			t.drop(o)
		}
		t.put(o, at)
		t.next[within] = port + 1 // 0 after the last one: it is in no range
		return port, nil
	}
	return 0, fmt.Errorf("none of the ports %s is free at %s of this node", within, addr)
}

// Adopt notes a port that a rule of a pod has had, if nobody else has it. It believes the caller.
func (t *Table) Adopt(pod, rule string, at netip.AddrPort) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := owner{pod, rule}
	if has, found := t.rules[o]; found {
		return has == at
	}
	if t.taken(at) {
		return false
	}
	t.put(o, at)
	return true
}

// Release gives back the ports of a pod.
func (t *Table) Release(pod string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for o := range t.rules {
		if o.pod == pod {
			t.drop(o)
		}
	}
}

// drop takes away the port of a rule. The caller holds mu.
func (t *Table) drop(o owner) {
	at := t.rules[o]
	delete(t.rules, o)
	var rest []netip.Addr
	for _, a := range t.ports[at.Port()] {
		if a != at.Addr() {
			rest = append(rest, a)
		}
	}
	if t.ports[at.Port()] = rest; rest == nil {
		delete(t.ports, at.Port())
	}
}

// put notes who has a port. The caller holds mu.
func (t *Table) put(o owner, at netip.AddrPort) {
	t.rules[o] = at
	t.ports[at.Port()] = append(t.ports[at.Port()], at.Addr())
}

// taken tells whether a server could not listen at an address because of another one. [::] counts
// for IPv4, too: servers there may be for both families. The caller holds mu.
func (t *Table) taken(at netip.AddrPort) bool {
	for _, a := range t.ports[at.Port()] {
		if a == at.Addr() || a.IsUnspecified() || at.Addr().IsUnspecified() {
			return true
		}
	}
	return false
}
