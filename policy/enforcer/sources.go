package enforcer

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/policy"
)

// How the sources of ingress rules are in the kernel: see bpf/sources.h.
//
// A rule has a row for each prefix, one for all of IPv4, and one for the mark of each pod. Rows are replaced in the order
// of update.go: new ones are written, the longest first, and then old ones go, the shortest first.
// So at each moment a source has the verdict of the old table or of the new one.
//
// Once a rule of a container has had sources, or after LookUpSources, the programs look for rows for
// good. A server whose rule has been withdrawn then takes no connection any more.

// allIPv4 is in the rows of each rule with sources, so that no IPv6 prefix decides about IPv4.
var allIPv4 = netip.PrefixFrom(netip.IPv4Unspecified(), 0)

const (
	sourceIsMark = 1 << 31 // SOURCE_IS_MARK of the BPF programs
	markBit      = 1 << 30 // of a mark that is no loopback
	markOwner    = markBit - 1
	sourceBits   = ownerBits + 32 + 128
)

// markOf returns the number by which sources know the network namespace with a cookie.
func markOf(netns uint64) uint32 { return uint32(netns) & markOwner }

// UseMark has the packets of the container's host sockets carry the mark of the namespace in which
// its programs are, on loopback devices. A container whose loopback is on the host has one already.
// A mark that a living container of another namespace has is refused.
func (e *Enforcement) UseMark(netns uint64) error {
	if err := e.takeMark(netns); err != nil {
		return fmt.Errorf("mark packets: %w", err)
	}
	if e.loopback != nil {
		return nil
	}
	if err := e.change(func(c *bpf.PolicyContainer) { c.Mark = markOf(netns) | markBit }); err != nil {
		return fmt.Errorf("mark packets: %w", err)
	}
	return nil
}

// marked has the namespaces' cookies of this process's living containers. A mark has fewer bits.
var marked struct {
	sync.Mutex
	netns map[*Enforcement]uint64
}

func (e *Enforcement) takeMark(netns uint64) error {
	marked.Lock()
	defer marked.Unlock()
	for other, its := range marked.netns {
		if other != e && its != netns && markOf(its) == markOf(netns) {
			return fmt.Errorf("another container's network namespace has the mark %#x too; start this container again, in a new one", markOf(netns))
		}
	}
	if marked.netns == nil {
		marked.netns = map[*Enforcement]uint64{}
	}
	marked.netns[e] = netns
	return nil
}

func (e *Enforcement) leaveMark() {
	marked.Lock()
	defer marked.Unlock()
	delete(marked.netns, e)
}

// Mark returns the priority of packets that have the container's mark.
func (e *Enforcement) Mark() uint32 {
	e.own.Lock()
	defer e.own.Unlock()
	return e.own.row.Mark
}

// AdmitPods lets in the pods that sources of rules name. netnsOf tells the network namespace of a pod's
// programs, as a cookie, by the pod's UID; false: it has none, and is not let in. netnsOf is asked now
// and with each Update, whose calls must not overlap with this one. Until the first call, pods are let
// in that an earlier process has let in.
func (e *Enforcement) AdmitPods(netnsOf func(uid string) (cookie uint64, known bool)) error {
	e.opened.mu.Lock()
	defer e.opened.mu.Unlock()
	e.pods = netnsOf
	if err := e.admit(e.table); err != nil {
		return fmt.Errorf("change sources: %w", err)
	}
	return nil
}

// LookUpSources has the next Update close servers whose rule its table does not have: they take no
// new connection, and unconnected sockets no datagram, but from the container itself. A rule that
// comes back opens its servers again. Later processes do the same.
func (e *Enforcement) LookUpSources() {
	e.opened.mu.Lock()
	defer e.opened.mu.Unlock()
	e.looksUp = true
}

// admit makes the maps hold the sources of a table's rules. After an error they hold those of both
// tables, or fewer.
func (e *Enforcement) admit(t *policy.Table) error {
	want, sourced, err := e.sourceRows(t)
	if err != nil {
		return err
	}
	for _, key := range slices.Backward(sortedSources(slices.Collect(maps.Keys(want)))) {
		if has, known := e.sources[key]; known && has == want[key] {
			continue
		}
		if err := e.rows.sources.put(key, bpf.PolicySourceVerdict{Admitted: boolToWord(want[key])}); err != nil {
			return fmt.Errorf("source %s/%d: %w", addrOf(key.Addr), key.Bits-ownerBits-32, err)
		}
		e.sources[key] = want[key]
	}
	if sourced && !e.Sourced() {
		if err := e.change(func(c *bpf.PolicyContainer) { c.Sourced = 1 }); err != nil {
			return err
		}
	}
	for _, key := range sortedSources(e.rows.sources.list()) {
		if _, wanted := want[key]; wanted || e.pods == nil && isPodOf(t, key) {
			continue
		}
		if err := e.rows.sources.delete(key); err != nil {
			return fmt.Errorf("former source: %w", err)
		}
		delete(e.sources, key)
	}
	return nil
}

// Sourced tells whether an ingress rule of the container has, or has had, sources. It stays so.
func (e *Enforcement) Sourced() bool {
	e.own.Lock()
	defer e.own.Unlock()
	return e.own.row.Sourced != 0
}

// isPodOf tells whether a row is for a pod of a rule that names some.
func isPodOf(t *policy.Table, key bpf.PolicySource) bool {
	return key.Rule&sourceIsMark != 0 && slices.ContainsFunc(t.IngressRules(), func(r policy.Ingress) bool {
		return uint32(r.Number) == key.Rule&^sourceIsMark && len(r.From.Pods()) > 0
	})
}

// sortedSources sorts keys, the shortest prefix first.
func sortedSources(keys []bpf.PolicySource) []bpf.PolicySource {
	slices.SortFunc(keys, func(a, b bpf.PolicySource) int { return cmp.Compare(a.Bits, b.Bits) })
	return keys
}

// sourceRows returns the rows of a table, with whether they admit. There are none, and sourced is
// false, if the programs need not look for any.
func (e *Enforcement) sourceRows(t *policy.Table) (rows map[bpf.PolicySource]bool, sourced bool, err error) {
	ingress := t.IngressRules()
	if !e.looksUp && !e.Sourced() && !slices.ContainsFunc(ingress, func(r policy.Ingress) bool { return len(r.From) > 0 }) {
		return nil, false, nil
	}
	// Sockets without a rule have bound an endpoint by its name.
	rows = map[bpf.PolicySource]bool{e.anySource(0): true}
	for _, r := range ingress {
		switch {
		case len(r.From) == 0:
			rows[e.anySource(r.Number)] = true
			continue
		case r.Number <= 0 || r.Number > 1<<16-1:
			return nil, false, fmt.Errorf("rule %s has sources, and the number %d", r, r.Number)
		}
		rows[e.sourceKey(r.Number, allIPv4)] = false // a wide IPv6 prefix has the mapped addresses
		for _, s := range r.From {
			if s.Pod == "" {
				rows[e.sourceKey(r.Number, s.Prefix)] = !s.Except
				continue
			}
			if e.pods == nil {
				continue
			}
			if netns, known := e.pods(s.Pod); known {
				rows[e.markKey(r.Number, markOf(netns))] = true
			}
		}
	}
	return rows, true, nil
}

// anySource is the row of a rule for all addresses.
func (e *Enforcement) anySource(rule int) bpf.PolicySource {
	return bpf.PolicySource{Bits: ownerBits + 32, Container: e.id, Rule: uint32(rule)}
}

func (e *Enforcement) sourceKey(rule int, p netip.Prefix) bpf.PolicySource {
	key := e.anySource(rule)
	key.Bits += uint32(policy.MappedBits(p))
	key.Addr = wordsOf(p.Addr())
	return key
}

func (e *Enforcement) markKey(rule int, mark uint32) bpf.PolicySource {
	return bpf.PolicySource{
		Bits: sourceBits, Container: e.id, Rule: uint32(rule) | sourceIsMark, Addr: bpf.PolicyAddr{Word: [4]uint32{3: mark}},
	}
}
