package enforcer

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/policy"
)

// How one table replaces another while the programs read the maps.
//
// A program looks up the row of the longest matching prefix, and then the row of an endpoint by the
// number in the first row. It reads the endpoint's row until it ends. A row is complete in itself
// and is replaced as a whole (RCU). A special prefix has a row if a rule names it; if not, the
// programs themselves know that no wider row covers it. So:
//
//  1. New endpoints get rows that no prefix refers to, in a table or in the cgroup's storage.
//  2. The new table's prefixes are written, the longest first: whoever finds one
//     finds the one that the new table says. All of the old ones are there yet.
//  3. Prefixes that the new table has not go, the shortest first: whoever finds
//     one finds the one that the old table says.
//  4. The number of the rules changes, with which sockets remember where datagrams lead.
//  5. All programs that may have seen an old row are waited for.
//  6. The rows of endpoints that are gone are deleted. Their numbers are free.
//
// So at each moment a destination has the verdict of the old table or that of the new one. The old
// table is whatever is in the maps: so a change that a process has left half done is completed in
// the same way.

// endpointsAtHand is ENDPOINTS_AT_HAND of the BPF programs.
const endpointsAtHand = 4

// errStuck says that a table could be neither replaced nor restored.
var errStuck = errors.New("the kernel's tables are half changed; start the container anew")

// Update replaces the table in force by t: its Next, or the table itself, to complete a change
// during which a former process was killed. After an error the old table is in force. Two calls
// must not overlap.
func (e *Enforcement) Update(t *policy.Table, netnsOf func(*endpoint.Endpoint) uint64) error {
	e.opened.mu.Lock()
	defer e.opened.mu.Unlock()
	if e.stuck != nil {
		return e.stuck
	}
	next := t.Numbered()
	for i, ep := range e.table.Numbered() {
		if i < len(next) && ep != nil && next[i] != nil && ep != next[i] {
			return fmt.Errorf("change policy maps: number %d is endpoint %s's, and %s's in the next table", i, ep.Name, next[i].Name)
		}
	}
	written, err := e.add(t, netnsOf)
	if err == nil {
		err = e.admit(t)
	}
	if err == nil {
		err = e.remove(t, netnsOf)
	}
	if err != nil {
		if back := e.restore(written, netnsOf); back != nil {
			e.stuck = fmt.Errorf("%w: %w", errStuck, back)
		}
		return errors.Join(fmt.Errorf("change policy maps: %w", err), e.stuck)
	}
	e.table = t
	return nil
}

// write makes the maps hold a table and nothing else, apart from what name rules have opened. The
// caller holds opened.mu.
func (e *Enforcement) write(t *policy.Table, netnsOf func(*endpoint.Endpoint) uint64) error {
	if _, err := e.add(t, netnsOf); err != nil {
		return err
	}
	if err := e.admit(t); err != nil {
		return err
	}
	return e.remove(t, netnsOf)
}

// add writes the rows of a table. It returns the prefixes that it has written, in the order of
// writing.
func (e *Enforcement) add(t *policy.Table, netnsOf func(*endpoint.Endpoint) uint64) (written []bpf.PolicyPrefix, err error) {
	if err := e.writeEndpoints(endpointRows(t, netnsOf)); err != nil {
		return nil, err
	}
	for _, r := range e.rowsOf(t) {
		key := e.prefixKey(r.prefix)
		if err := e.rows.egress.put(key, r.row); err != nil {
			return written, fmt.Errorf("prefix %s: %w", r.prefix, err)
		}
		written = append(written, key)
	}
	return written, nil
}

// remove deletes the rows that a table does not have.
func (e *Enforcement) remove(t *policy.Table, netnsOf func(*endpoint.Endpoint) uint64) error {
	rows := e.egressRows(t)
	for _, key := range e.rows.prefixes() {
		if _, there := rows[key]; there {
			continue
		}
		if err := e.rows.egress.delete(key); err != nil {
			return fmt.Errorf("former prefix %s/%d: %w", addrOf(key.Addr), key.Bits-ownerBits, err)
		}
	}
	if err := e.outdateVerdicts(); err != nil {
		return err
	}
	return e.clear(endpointRows(t, netnsOf))
}

// outdateVerdicts has sockets forget the verdicts that they remember (bpf/loopback.h, bpf/udp.h). It is
// called after what they depend on has changed.
func (e *Enforcement) outdateVerdicts() error {
	return e.change(func(c *bpf.PolicyContainer) { c.Rules++ })
}

// egressRows returns the rows of rowsOf by their keys.
func (e *Enforcement) egressRows(t *policy.Table) map[bpf.PolicyPrefix]bpf.PolicyEgress {
	rows := map[bpf.PolicyPrefix]bpf.PolicyEgress{}
	for _, r := range e.rowsOf(t) {
		rows[e.prefixKey(r.prefix)] = r.row
	}
	return rows
}

// restore makes the maps hold the table in force, after another was written in part. It first
// undoes the writes, the latest first: so the programs find the old rows again, and there is room.
// On Linux 5.15 a full trie refuses to replace a row, too.
func (e *Enforcement) restore(written []bpf.PolicyPrefix, netnsOf func(*endpoint.Endpoint) uint64) error {
	rows := e.egressRows(e.table)
	for _, key := range slices.Backward(written) {
		var err error
		if row, there := rows[key]; there {
			err = e.rows.egress.put(key, row)
		} else {
			err = e.rows.egress.delete(key)
		}
		if err != nil {
			return err
		}
	}
	return e.write(e.table, netnsOf)
}

// clear frees the rows of all endpoints that are not in the argument.
func (e *Enforcement) clear(endpoints map[int]bpf.PolicyEndpoint) error {
	gone := map[int]bpf.PolicyEndpoint{}
	for i := range e.numbers() {
		if _, there := endpoints[i]; !there {
			gone[i] = bpf.PolicyEndpoint{}
		}
	}
	if len(gone) == 0 {
		return nil
	}
	if err := waitForPrograms(); err != nil {
		return fmt.Errorf("wait for running programs: %w", err)
	}
	return e.writeEndpoints(gone)
}

// numbers returns the numbers of the endpoints that have rows.
func (e *Enforcement) numbers() map[int]bool {
	numbers := map[int]bool{}
	for _, key := range e.rows.endpoints.list() {
		numbers[int(key.Number)] = true
	}
	e.own.Lock()
	defer e.own.Unlock()
	for i, row := range e.own.row.Endpoint {
		if row != (bpf.PolicyEndpoint{}) {
			numbers[i] = true
		}
	}
	return numbers
}

// writeEndpoints writes rows of endpoints by their numbers. An empty row stands for no endpoint.
func (e *Enforcement) writeEndpoints(rows map[int]bpf.PolicyEndpoint) error {
	atHand := false
	for i, row := range rows {
		var err error
		switch {
		case i < endpointsAtHand:
			atHand = true
		case row == bpf.PolicyEndpoint{}:
			err = e.rows.endpoints.delete(e.numberKey(uint32(i)))
		default:
			err = e.rows.endpoints.put(e.numberKey(uint32(i)), row)
		}
		if err != nil {
			return fmt.Errorf("endpoint %d: %w", i, err)
		}
	}
	if !atHand {
		return nil
	}
	return e.change(func(c *bpf.PolicyContainer) {
		for i, row := range rows {
			if i < endpointsAtHand {
				c.Endpoint[i] = row
			}
		}
	})
}

// change changes the container's row. The programs see all of the change or nothing.
func (e *Enforcement) change(fn func(*bpf.PolicyContainer)) error {
	e.own.Lock()
	defer e.own.Unlock()
	row := e.own.row
	fn(&row)
	if e.own.attached {
		if err := e.set.ContainerByCgroup.Update(e.cgroup, row, ebpf.UpdateExist); err != nil {
			return err
		}
	}
	e.own.row = row
	return nil
}

// waitForPrograms waits until every kernel program that runs now has ended: the
// kernel does so before it returns from a change of a map of maps (commit
// 1ae80cf31938, "bpf: wait for running BPF programs when updating map-in-map").
func waitForPrograms() error {
	spec := &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	inner, err := ebpf.NewMap(spec)
	if err != nil {
		return err
	}
	defer inner.Close()
	outer, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1, InnerMap: spec})
	if err != nil {
		return err
	}
	defer outer.Close()
	return outer.Put(uint32(0), inner)
}

// hasRow tells whether the programs need a row for a prefix. If they find no row, or for a special
// destination only the row of a wider prefix, they refuse. The row of all IPv4 keeps IPv4
// addresses, which are mapped, from the rows of IPv6 prefixes.
func hasRow(r policy.Route) bool {
	return len(r.Ranges) > 0 || r.Prefix == netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

func (e *Enforcement) numberKey(number uint32) bpf.PolicyNumber {
	return bpf.PolicyNumber{Bits: numberBits, Container: e.id, Number: number}
}

// endpointRows returns the rows of a table's endpoints, by their numbers.
func endpointRows(t *policy.Table, netnsOf func(*endpoint.Endpoint) uint64) map[int]bpf.PolicyEndpoint {
	rows := map[int]bpf.PolicyEndpoint{}
	for i, ep := range t.Numbered() {
		if ep != nil {
			rows[i] = endpointRow(ep, netnsOf)
		}
	}
	return rows
}

func endpointRow(ep *endpoint.Endpoint, netnsOf func(*endpoint.Endpoint) uint64) bpf.PolicyEndpoint {
	if ep.Type == endpoint.Unix {
		return bpf.PolicyEndpoint{} // no namespace has cookie 0: IP sockets do not pass
	}
	return bpf.PolicyEndpoint{Netns: netnsOf(ep), Addr: wordsOf(ep.Addr), Port: ep.Port.First}
}

func egressRow(r policy.Route) bpf.PolicyEgress {
	row := bpf.PolicyEgress{Count: uint16(len(r.Ranges)), Special: boolByte(r.Special)}
	for i, o := range r.Ranges {
		row.Range[i] = bpf.PolicyPortRange{First: o.Ports.First, Last: o.Ports.Last, Endpoint: uint8(o.Endpoint), Protocol: uint8(o.Protocol)}
	}
	return row
}

func (e *Enforcement) prefixKey(p netip.Prefix) bpf.PolicyPrefix {
	return bpf.PolicyPrefix{Bits: uint32(ownerBits + policy.MappedBits(p)), Container: e.id, Addr: wordsOf(p.Addr())}
}
