// Package policy owns the rules of a container: which host address a bind gets, through which
// endpoint a destination is reached, and which destinations are not reached at all.
//
// A Table gives the verdicts in Go, for the supervisor. Snapshot compiles the very
// same table for C programs, and package enforcer for the kernel. This package opens
// nothing and makes no system call. It needs no privilege and runs on any kernel.
package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tsugiki/tsugiki/endpoint"
)

// The limits of a Table: the BPF programs' constants of these names.
const (
	// RangesMax is the number of port ranges that a prefix may have, including those of its
	// parents: EGRESS_RANGES_MAX.
	RangesMax = 32
	// PrefixesMax is EGRESS_PREFIXES_MAX.
	PrefixesMax = 1024
	// EndpointsMax is ENDPOINTS_MAX.
	EndpointsMax = 256
)

// special lists the prefixes that a wider rule does not cover. To cover one, a rule must name it or
// a part of it. In the host's namespace, they lead to destinations that only the host's own
// processes reach.
var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("224.0.0.0/4"),
	netip.MustParsePrefix("255.255.255.255/32"),
	netip.MustParsePrefix("::/128"),
	netip.MustParsePrefix("::1/128"),
	netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("ff00::/8"),
}

var (
	all4 = netip.MustParsePrefix("0.0.0.0/0")
	all6 = netip.MustParsePrefix("::/0")
)

// Table holds the compiled rules of one container. It does not change, and may
// be used by many goroutines at once.
type Table struct {
	ingress []Ingress
	egress  []Egress // the longest prefix first, then the smallest range of ports, then one protocol
	names   []NameRule
	// outlets has an entry for every prefix that a rule names, for every special prefix and for
	// both default routes. The entry has all rules for an address whose longest such prefix this
	// is, in order of preference.
	outlets  map[netip.Prefix][]Egress
	lengths4 []int // of the prefixes in outlets, longest first
	lengths6 []int
	// endpoints has the endpoints of all rules, each at its number; nil: the number is free.
	endpoints []*endpoint.Endpoint
}

// NewTable compiles rules. If rules contradict each other, or are too many for the kernel's tables,
// the error wraps ErrRule.
func NewTable(ingress []Ingress, egress []Egress, names ...NameRule) (*Table, error) {
	return compile(ingress, egress, names, nil)
}

// Next compiles rules into a table that can replace this one: an endpoint that both name has the
// same number in both, and a new endpoint has no number of this table.
func (t *Table) Next(ingress []Ingress, egress []Egress, names ...NameRule) (*Table, error) {
	return compile(ingress, egress, names, t.endpoints)
}

// Restore compiles the rules of a table that an earlier process had in force. numbered has the
// endpoints of that table, each at its number.
func Restore(ingress []Ingress, egress []Egress, numbered []*endpoint.Endpoint, names ...NameRule) (*Table, error) {
	return compile(ingress, egress, names, numbered)
}

// Numbered returns the endpoints that some rule names, each at its number; nil stands for a free
// number.
func (t *Table) Numbered() []*endpoint.Endpoint { return slices.Clone(t.endpoints) }

func compile(ingress []Ingress, egress []Egress, names []NameRule, before []*endpoint.Endpoint) (*Table, error) {
	t := &Table{ingress: slices.Clone(ingress), names: slices.Clone(names), outlets: map[netip.Prefix][]Egress{}}
	if err := checkIngress(t.ingress); err != nil {
		return nil, err
	}
	if n := sourceRows(t.ingress); n > SourcesMax {
		return nil, fmt.Errorf("%w -i: %d rules and sources, at most %d may be", ErrRule, n, SourcesMax)
	}
	// An exact address comes before the unspecified one.
	slices.SortStableFunc(t.ingress, func(a, b Ingress) int {
		return boolCompare(a.Addr.IsUnspecified(), b.Addr.IsUnspecified())
	})
	egress = slices.Clone(egress)
	slices.SortStableFunc(egress, func(a, b Egress) int {
		return cmp.Or(b.Prefix.Bits()-a.Prefix.Bits(), a.Ports.Size()-b.Ports.Size(), boolCompare(a.Protocol == 0, b.Protocol == 0))
	})
	if err := checkEgress(egress); err != nil {
		return nil, err
	}
	t.egress = egress
	prefixes := append([]netip.Prefix{all4, all6}, special...)
	for _, r := range egress {
		prefixes = append(prefixes, r.Prefix)
	}
	for _, p := range prefixes {
		outlets := outletsOf(p, egress)
		if len(outlets) > RangesMax {
			return nil, fmt.Errorf("%w -e: %d port ranges apply to %s, at most %d may", ErrRule, len(outlets), p, RangesMax)
		}
		t.outlets[p] = outlets
	}
	if len(t.outlets) > PrefixesMax {
		return nil, fmt.Errorf("%w -e: %d prefixes, at most %d fit", ErrRule, len(t.outlets), PrefixesMax)
	}
	if err := t.checkNames(); err != nil {
		return nil, err
	}
	t.sortLengths()
	t.number(egress, before)
	if len(t.endpoints) > EndpointsMax {
		return nil, fmt.Errorf("%w: %d endpoints are named, at most %d may", ErrRule, len(t.endpoints), EndpointsMax)
	}
	return t, nil
}

func (t *Table) sortLengths() {
	for p := range t.outlets {
		lengths := &t.lengths6
		if p.Addr().Is4() {
			lengths = &t.lengths4
		}
		if !slices.Contains(*lengths, p.Bits()) {
			*lengths = append(*lengths, p.Bits())
		}
	}
	descending := func(a, b int) int { return b - a }
	slices.SortFunc(t.lengths4, descending)
	slices.SortFunc(t.lengths6, descending)
}

// number gives each endpoint the number that it had before, or a free one.
func (t *Table) number(egress []Egress, before []*endpoint.Endpoint) {
	var named []*endpoint.Endpoint
	for _, r := range t.ingress {
		named = append(named, r.Endpoint)
	}
	for _, r := range egress {
		named = append(named, r.Endpoint)
	}
	for _, r := range t.names {
		named = append(named, r.Endpoint)
	}
	t.endpoints = slices.Clone(before)
	for i, ep := range t.endpoints {
		if !slices.Contains(named, ep) {
			t.endpoints[i] = nil
		}
	}
	free := 0
	for _, ep := range named {
		if slices.Contains(t.endpoints, ep) {
			continue
		}
		for free < len(before) && before[free] != nil || free < len(t.endpoints) && t.endpoints[free] != nil {
			free++
		}
		if free == len(t.endpoints) {
			t.endpoints = append(t.endpoints, nil)
		}
		t.endpoints[free] = ep
	}
	for n := len(t.endpoints); n > 0 && t.endpoints[n-1] == nil; n-- {
		t.endpoints = t.endpoints[:n-1]
	}
}

// outletsOf returns the rules for the addresses of p, most specific first: those of all prefixes
// that contain p, unless p is in a special prefix that such a rule does not name.
func outletsOf(p netip.Prefix, egress []Egress) []Egress {
	var outlets []Egress
	for _, r := range egress {
		if !contains(r.Prefix, p) || passesOver(r.Prefix, p) {
			continue
		}
		outlets = append(outlets, r)
		if r.isForAll() {
			break // no rule after it can match
		}
	}
	return outlets
}

// isForAll tells whether a rule is for all ports of both protocols.
func (r Egress) isForAll() bool { return r.Ports == AllPorts && r.Protocol == 0 }

func contains(wide, narrow netip.Prefix) bool {
	return wide.Bits() <= narrow.Bits() && wide.Contains(narrow.Addr())
}

// passesOver tells whether a rule for the prefix wide does not cover narrow, because narrow is
// special and wide is wider than the special prefix.
func passesOver(wide, narrow netip.Prefix) bool {
	return slices.ContainsFunc(special, func(s netip.Prefix) bool {
		return contains(s, narrow) && !contains(s, wide)
	})
}

// isSpecial tells whether rules cover addresses of a prefix only if they name it.
func isSpecial(p netip.Prefix) bool {
	return slices.ContainsFunc(special, func(s netip.Prefix) bool { return contains(s, p) })
}

func checkEgress(egress []Egress) error {
	seen := map[Egress]*endpoint.Endpoint{}
	for _, r := range egress {
		what := r
		what.Endpoint = nil
		if other := seen[what]; other != nil {
			return fmt.Errorf("%w -e: %s is given to endpoint %q and to %q", ErrRule, r.Prefix, other.Name, r.Endpoint.Name)
		}
		seen[what] = r.Endpoint
	}
	return nil
}

func checkIngress(ingress []Ingress) error {
	for i, a := range ingress {
		for _, b := range ingress[i+1:] {
			if a.Addr == b.Addr && a.Protocol.Meets(b.Protocol) && a.Ports.First <= b.Ports.Last && b.Ports.First <= a.Ports.Last {
				return fmt.Errorf("%w -i: the ports %s and %s of %s overlap", ErrRule, a.Ports, b.Ports, a.Addr)
			}
		}
	}
	return nil
}

// sourceRows returns how many rows the sources of rules take in the kernel.
func sourceRows(ingress []Ingress) int {
	rows := 1
	for _, r := range ingress {
		rows += len(r.From) + 1 // one for all of IPv4, or for everybody
	}
	return rows
}

func boolCompare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// Egress returns the endpoint through which a destination is reached, or nil for the container's
// own namespace. An IPv4-mapped address is the IPv4 address.
func (t *Table) Egress(protocol Protocol, to netip.AddrPort) *endpoint.Endpoint {
	return t.EgressRule(protocol, to).Endpoint
}

// EgressRule returns the rule that decides about a destination, or the zero value if none does.
func (t *Table) EgressRule(protocol Protocol, to netip.AddrPort) Egress {
	for _, o := range t.outletsFor(to.Addr().Unmap().WithZone("")) {
		if o.Ports.Contains(to.Port()) && o.Protocol.Meets(protocol) {
			return o
		}
	}
	return Egress{}
}

// outletsFor returns the rules for an address, in order of preference.
func (t *Table) outletsFor(addr netip.Addr) []Egress {
	lengths := t.lengths6
	if addr.Is4() {
		lengths = t.lengths4
	}
	for _, bits := range lengths {
		p, err := addr.Prefix(bits)
		if err != nil {
			continue
		}
		if outlets, found := t.outlets[p]; found {
			return outlets
		}
	}
	return nil
}

// Ingress returns the endpoint and the host's port for a program that binds an address and port;
// nil for the container's own namespace. Port 0 stands for any free port.
func (t *Table) Ingress(protocol Protocol, bind netip.AddrPort) (*endpoint.Endpoint, uint16) {
	r := t.IngressRule(protocol, bind)
	if r.Endpoint == nil {
		return nil, 0
	}
	return r.Endpoint, r.HostPort(bind.Port())
}

// IngressRule returns the rule that decides about a bind, or the zero value if none does.
func (t *Table) IngressRule(protocol Protocol, bind netip.AddrPort) Ingress {
	addr := bind.Addr().WithZone("")
	for _, r := range t.ingress {
		if !r.Ports.Contains(bind.Port()) || !r.Protocol.Meets(protocol) {
			continue
		}
		any := r.Addr.IsUnspecified() && r.Addr.Is4() == addr.Is4() && !addr.IsLoopback()
		if r.Addr != addr && !any {
			continue
		}
		return r
	}
	return Ingress{}
}

// HasOwn tells whether a rule makes servers listen in the container's own namespace too.
func (t *Table) HasOwn() bool {
	return slices.ContainsFunc(t.ingress, func(r Ingress) bool { return r.Own })
}

// Default returns the endpoint for the widest prefix on all ports of both protocols, which leads to
// the rest of the world; or nil.
func (t *Table) Default(ip6 bool) *endpoint.Endpoint {
	p := all4
	if ip6 {
		p = all6
	}
	if outlets := t.outlets[p]; len(outlets) > 0 && outlets[len(outlets)-1].isForAll() {
		return outlets[len(outlets)-1].Endpoint
	}
	return nil
}

// Endpoints returns the endpoints that some rule names.
func (t *Table) Endpoints() []*endpoint.Endpoint {
	return slices.DeleteFunc(slices.Clone(t.endpoints), func(ep *endpoint.Endpoint) bool { return ep == nil })
}

// IngressRules returns the ingress rules, exact addresses first.
func (t *Table) IngressRules() []Ingress { return slices.Clone(t.ingress) }

// EgressRules returns the egress rules, the longest prefix first, then the smallest range of ports.
func (t *Table) EgressRules() []Egress { return slices.Clone(t.egress) }

// HasEgress tells whether any destination of a family lies on the host's side.
func (t *Table) HasEgress(ip6 bool) bool {
	if ip6 && len(t.names) > 0 {
		return true
	}
	for p, outlets := range t.outlets {
		if len(outlets) > 0 && p.Addr().Is6() == ip6 {
			return true
		}
	}
	return false
}

// Names tells whether an ingress rule names exactly this address.
func (t *Table) Names(addr netip.Addr) bool {
	return slices.ContainsFunc(t.ingress, func(r Ingress) bool { return r.Addr == addr })
}

// Special returns the special prefix that an address lies in: only a rule that names this prefix,
// or a part of it, covers the address.
func Special(addr netip.Addr) (netip.Prefix, bool) {
	i := slices.IndexFunc(special, func(p netip.Prefix) bool { return p.Contains(addr.Unmap().WithZone("")) })
	if i < 0 {
		return netip.Prefix{}, false
	}
	return special[i], true
}
