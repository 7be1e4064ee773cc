// Package ports owns which pod of a node has which port of the node.
//
// It knows numbers and opens no socket: the agent reserves the ports. It needs no privilege and no
// particular kernel.
//
// # Theory of operation
//
// A rule of a pod keeps its port while the pod has the rule. Then the port lapses: the rule gets it again
// when it comes back, as its server may still listen there. Another rule gets a lapsed port only if there
// is no other, nobody listens at it, and no client of another namespace can be misled: EndpointSlices of
// the former owner may still lead there, and they are of its namespace. So a pod of another namespace gets no
// port to which a Service may have led.
//
// Release gives back all ports of a pod. It is for pods that are gone, and also for those that have ended
// (Succeeded, Failed) or that ask to be grafted no more, whose objects are there: a node may have any number
// of pods that have ended, and their ports would be missing for all namespaces. Package cluster removes the
// EndpointSlices of such a pod. Until it has, they lead to the next owner of the port.
//
// A pod whose status says that it has a port claims the port. Nobody else gets it before the first
// decision about the pod: its EndpointSlice may lead there already.
package ports

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/tsugiki/tsugiki/kube/grant"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// Free tells whether a port can be had: whether no other process of the node has it now.
type Free func(protocol v1alpha1.Protocol, at netip.AddrPort) bool

// Table has the ports of pods, until the pods are released.
type Table struct {
	free Free

	mu      sync.Mutex // guards what follows
	pods    map[string][]*port
	numbers map[uint16][]*port
	next    map[grant.Range]uint16 // where the search begins: ports are used again late
}

// port is a port of a rule. A rule has one that has not lapsed, and any number of others.
type port struct {
	pod, namespace, rule string
	at                   netip.AddrPort
	state                state
	had                  bool // the pod has had it, by an earlier decision
	led                  bool // an EndpointSlice may lead there
	unheard              bool // the pod claims it, and no decision has given it since: anybody may listen there
}

type state int

const (
	taken   state = iota // by a decision that Settle has not seen
	held                 // the pod has the rule
	claimed              // by the pod's status; the address is not known
	lapsed               // the pod does not have the rule any more
)

// New makes a table. Without free, no other process has a port.
func New(free Free) *Table {
	if free == nil {
		free = func(v1alpha1.Protocol, netip.AddrPort) bool { return true }
	}
	return &Table{free: free, pods: map[string][]*port{}, numbers: map[uint16][]*port{}, next: map[grant.Range]uint16{}}
}

// Pod takes ports for a pod. It implements grant.Ports.
type Pod struct {
	table          *Table
	uid, namespace string
	// Short says that there was no port for a rule.
	Short bool
}

// Of returns what takes ports for a pod.
func (t *Table) Of(uid, namespace string) *Pod { return &Pod{table: t, uid: uid, namespace: namespace} }

// Take implements grant.Ports.
func (p *Pod) Take(_, rule string, protocol v1alpha1.Protocol, addr netip.Addr, within grant.Range) (uint16, error) {
	t := p.table
	t.mu.Lock()
	defer t.mu.Unlock()
	has := t.find(p.uid, func(e *port) bool { return e.rule == rule && (e.state == taken || e.state == held) })
	if has != nil && has.at.Addr() == addr && within.Contains(has.at.Port()) {
		return has.at.Port(), nil
	}
	next := t.comesBack(p, rule, protocol, addr, within)
	for _, may := range []func(*port) bool{func(*port) bool { return false }, p.mayHave} {
		if next == nil {
			next = t.search(p, rule, protocol, addr, within, may)
		}
	}
	if next == nil {
		p.Short = true
		return 0, fmt.Errorf("none of the ports %s is free at %s of this node", within, addr)
	}
	if has != nil {
		t.lapse(has)
	}
	return next.at.Port(), nil
}

// comesBack gives a rule the port that it has had, or that its pod claims, unless another pod has it.
func (t *Table) comesBack(p *Pod, rule string, protocol v1alpha1.Protocol, addr netip.Addr, within grant.Range) *port {
	for _, e := range slices.Backward(t.pods[p.uid]) {
		at := netip.AddrPortFrom(addr, e.at.Port())
		if e.rule != rule || e.state != claimed && e.state != lapsed || e.at.Addr() != addr && !e.at.Addr().IsUnspecified() || !within.Contains(at.Port()) {
			continue
		}
		others := slices.DeleteFunc(t.at(at), func(o *port) bool { return o.pod == p.uid && o.rule == rule })
		lost := slices.ContainsFunc(others, func(o *port) bool { return o.state != lapsed && (o.state != claimed || e.state != claimed) })
		// The pod's own server may listen where nobody else has been.
		if lost || (e.unheard || len(others) > 0) && !t.free(protocol, at) {
			continue
		}
		e.at, e.state = at, taken
		return e
	}
	return nil
}

// search gives a rule a port that nobody has but who may lose it.
func (t *Table) search(p *Pod, rule string, protocol v1alpha1.Protocol, addr netip.Addr, within grant.Range, mayLose func(*port) bool) *port {
	begin := t.next[within]
	if !within.Contains(begin) {
		begin = within.First
	}
	size := int(within.Last-within.First) + 1
	for i := range size {
		at := netip.AddrPortFrom(addr, within.First+uint16((int(begin-within.First)+i)%size))
		others := t.at(at)
		if slices.ContainsFunc(others, func(o *port) bool { return !mayLose(o) }) || !t.free(protocol, at) {
			continue
		}
		for _, o := range others {
			t.drop(o)
		}
		t.next[within] = at.Port() + 1 // 0 after the last one: it is in no range
		return t.add(port{pod: p.uid, namespace: p.namespace, rule: rule, at: at})
	}
	return nil
}

// mayHave tells whether a pod may have the port of another rule.
func (p *Pod) mayHave(e *port) bool {
	return e.state == lapsed && (!e.led || e.namespace == p.namespace)
}

// Settle says which ports the pod has by its last decision, and that this is in force. It tells whether
// others have lapsed, which the pod had before.
func (p *Pod) Settle(served []grant.Served) (lapses bool) {
	t := p.table
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range slices.Clone(t.pods[p.uid]) {
		i := slices.IndexFunc(served, func(s grant.Served) bool { return s.Rule == e.rule })
		switch {
		case e.state == lapsed:
		case i >= 0 && e.state != claimed:
			e.state, e.had, e.led, e.unheard = held, true, e.led || len(served[i].Services) > 0, false
		default:
			lapses = lapses || e.state != taken
			t.lapse(e)
		}
	}
	return lapses
}

// Adopt notes a port that a rule of the pod has, unless another pod has it.
func (p *Pod) Adopt(rule string, at netip.AddrPort) { p.note(rule, at, held) }

// AdoptFormer notes a port that a rule of the pod has had and may have again, unless another pod has it.
func (p *Pod) AdoptFormer(rule string, at netip.AddrPort) { p.note(rule, at, lapsed) }

// Claim notes that the pod's status says that a rule has a port. The status has an address at which others
// reach the port, and the port may be all addresses'.
func (p *Pod) Claim(rule string, at netip.AddrPort) {
	all := netip.IPv4Unspecified()
	if at.Addr().Is6() {
		all = netip.IPv6Unspecified()
	}
	p.note(rule, netip.AddrPortFrom(all, at.Port()), claimed)
}

func (p *Pod) note(rule string, at netip.AddrPort, as state) {
	t := p.table
	t.mu.Lock()
	defer t.mu.Unlock()
	known := t.find(p.uid, func(e *port) bool {
		return e.rule == rule && (e.at.Port() == at.Port() || as == held && e.state == held)
	})
	others := func(o *port) bool { return o.pod != p.uid && o.state != lapsed }
	if known != nil || as != claimed && slices.ContainsFunc(t.at(at), others) {
		return
	}
	t.add(port{pod: p.uid, namespace: p.namespace, rule: rule, at: at, state: as, had: true, led: true, unheard: as == claimed})
}

// Release gives back the ports of a pod, and tells whether there were any.
func (t *Table) Release(pod string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := slices.Clone(t.pods[pod])
	for _, e := range list {
		t.drop(e)
	}
	return len(list) > 0
}

// find returns a port of a pod. The caller holds mu.
func (t *Table) find(pod string, is func(*port) bool) *port {
	if i := slices.IndexFunc(t.pods[pod], is); i >= 0 {
		return t.pods[pod][i]
	}
	return nil
}

// at returns the ports because of which a server could not listen at an address. [::] counts for IPv4,
// too: servers there may be for both families. The caller holds mu.
func (t *Table) at(at netip.AddrPort) (list []*port) {
	for _, e := range t.numbers[at.Port()] {
		if a := e.at.Addr(); a == at.Addr() || a.IsUnspecified() || at.Addr().IsUnspecified() {
			list = append(list, e)
		}
	}
	return list
}

// lapse has a port lapse that a pod has had, and drops another one. The caller holds mu.
func (t *Table) lapse(e *port) {
	if e.state = lapsed; !e.had {
		t.drop(e)
	}
}

// add adds a port. The caller holds mu.
func (t *Table) add(is port) *port {
	e := &is
	t.pods[e.pod] = append(t.pods[e.pod], e)
	t.numbers[e.at.Port()] = append(t.numbers[e.at.Port()], e)
	return e
}

// drop removes a port. The caller holds mu.
func (t *Table) drop(e *port) {
	is := func(o *port) bool { return o == e }
	if t.pods[e.pod] = slices.DeleteFunc(t.pods[e.pod], is); len(t.pods[e.pod]) == 0 {
		delete(t.pods, e.pod)
	}
	if t.numbers[e.at.Port()] = slices.DeleteFunc(t.numbers[e.at.Port()], is); len(t.numbers[e.at.Port()]) == 0 {
		delete(t.numbers, e.at.Port())
	}
}
