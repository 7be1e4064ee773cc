package enforcer

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/policy"
)

// Addresses that name rules open have rows of their own in the table of prefixes, each as a prefix of
// 128 bits. So the programs need to know nothing of names. Each row is put and deleted by itself, and
// has what the egress rules say about the address too. A change of the rules writes all of them anew
// (see rowsOf).

// opened has the addresses that name rules have opened.
type opened struct {
	mu    sync.Mutex // guards what follows, and is held to change rows of prefixes
	at    map[netip.Addr][]policy.Opening
	ended bool // the container has ended, and has no rows
}

// addressBits is the length of the prefix of one IPv6 address.
const addressBits = 128

// SetOpened makes openings the ones that name rules have for an address, in place of all former ones.
// Without openings, only the egress rules cover the address. When SetOpened returns, the programs judge
// so. If the kernel refuses, the address has no opening. SetOpened refuses addresses that no name rule
// can open: those of IPv4, and special ones.
func (e *Enforcement) SetOpened(addr netip.Addr, openings []policy.Opening) error {
	if _, special := policy.Special(addr); special || !addr.Is6() || addr.Is4In6() || addr.Zone() != "" {
		return fmt.Errorf("open %s by its name: it is special, or of IPv4", addr)
	}
	o := &e.opened
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended || e.stuck != nil {
		return e.stuck
	}
	if _, there := o.at[addr]; !there && len(openings) > 0 && len(o.at) >= policy.OpenedMax {
		return fmt.Errorf("open %s by its name: %w: there are %d", addr, errNoRoom, len(o.at))
	}
	err := e.writeOpened(addr, openings)
	if err == nil {
		err = e.outdateVerdicts()
	}
	if err != nil {
		err = fmt.Errorf("open %s by its name: %w", addr, errors.Join(err, e.rows.egress.delete(e.addressKey(addr))))
		openings = nil
	}
	switch {
	case len(openings) == 0:
		delete(o.at, addr)
	case o.at == nil:
		o.at = map[netip.Addr][]policy.Opening{addr: openings}
	default:
		o.at[addr] = openings
	}
	return err
}

func (e *Enforcement) writeOpened(addr netip.Addr, openings []policy.Opening) error {
	r, needed := e.table.Opened(addr, openings)
	if !needed || !hasRow(r) {
		return e.rows.egress.delete(e.addressKey(addr))
	}
	return e.rows.egress.put(e.addressKey(addr), egressRow(r))
}

// Opened returns the addresses that name rules have opened, with their openings.
func (e *Enforcement) Opened() map[netip.Addr][]policy.Opening {
	e.opened.mu.Lock()
	defer e.opened.mu.Unlock()
	return maps.Clone(e.opened.at)
}

// OpenedBy returns the endpoint by which name rules have opened a port of an address; nil if they have
// not.
func (e *Enforcement) OpenedBy(protocol policy.Protocol, to netip.AddrPort) *endpoint.Endpoint {
	e.opened.mu.Lock()
	defer e.opened.mu.Unlock()
	if e.opened.has(protocol, to) {
		return e.table.NameEndpoint()
	}
	return nil
}

// leadsTo tells whether an egress rule or a name rule covers a destination.
func (e *Enforcement) leadsTo(protocol policy.Protocol, to netip.AddrPort) bool {
	e.opened.mu.Lock()
	defer e.opened.mu.Unlock()
	return e.table.Egress(protocol, to) != nil || e.opened.has(protocol, to)
}

// has tells whether name rules have opened a port of an address. The caller holds mu.
func (o *opened) has(protocol policy.Protocol, to netip.AddrPort) bool {
	return slices.ContainsFunc(o.at[to.Addr()], func(is policy.Opening) bool {
		return is.Ports.Contains(to.Port()) && is.Protocol.Meets(protocol)
	})
}

// end makes SetOpened write no more rows.
func (o *opened) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
}

// prefixRow is a row of the table of prefixes.
type prefixRow struct {
	prefix netip.Prefix
	row    bpf.PolicyEgress
}

// rowsOf returns the rows of a table's prefixes, and of the addresses that name rules have opened, the
// longest prefix first. The caller holds opened.mu.
func (e *Enforcement) rowsOf(t *policy.Table) []prefixRow {
	var list []prefixRow
	single := map[netip.Prefix]bool{}
	for addr, openings := range e.opened.at {
		if r, needed := t.Opened(addr, openings); needed && hasRow(r) {
			list = append(list, prefixRow{r.Prefix, egressRow(r)})
			single[r.Prefix] = true
		}
	}
	for _, r := range t.Routes() {
		if hasRow(r) && !single[r.Prefix] {
			list = append(list, prefixRow{r.Prefix, egressRow(r)})
		}
	}
	return list
}

// adoptOpened finds the addresses that an earlier process has opened. Their rows are of one address, and
// have openings of name rules after what the table says about the address. Other rows that the table
// has not are left from a change that was not completed. The next Update removes those.
func (e *Enforcement) adoptOpened() error {
	o := &e.opened
	o.mu.Lock()
	defer o.mu.Unlock()
	o.at = map[netip.Addr][]policy.Opening{}
	possible := map[policy.Opening]bool{}
	for _, n := range e.table.NameRules() {
		possible[n.Opening()] = true
	}
	for _, key := range e.rows.prefixes() {
		addr := addrOf(key.Addr)
		if key != e.addressKey(addr) || len(possible) == 0 || addr.Is4In6() {
			continue
		}
		var row bpf.PolicyEgress
		if err := e.rows.egress.lookup(key, &row); err != nil {
			return fmt.Errorf("read the row of %s: %w", addr, err)
		}
		without, _ := e.table.Opened(addr, nil)
		var openings []policy.Opening
		for _, r := range row.Range[min(len(without.Ranges), int(row.Count)):row.Count] {
			opening := policy.Opening{Ports: endpoint.PortRange{First: r.First, Last: r.Last}, Protocol: policy.Protocol(r.Protocol)}
			if possible[opening] {
				openings = append(openings, opening)
			}
		}
		if r, _ := e.table.Opened(addr, openings); len(openings) > 0 && egressRow(r) == row {
			o.at[addr] = openings
		}
	}
	return nil
}

func (e *Enforcement) addressKey(addr netip.Addr) bpf.PolicyPrefix {
	return e.prefixKey(netip.PrefixFrom(addr, addressBits))
}
