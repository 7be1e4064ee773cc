package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tsugiki/tsugiki/endpoint"
)

// Opening is what name rules open at an address, by the endpoint of the name rules.
type Opening struct {
	Ports    endpoint.PortRange
	Protocol Protocol
}

// Opening returns what the rule opens at an address that was answered for a name that matches.
func (r NameRule) Opening() Opening { return Opening{r.Ports, r.Protocol} }

// Openings returns what rules open together, without repetitions, in a fixed order.
func Openings(rules []NameRule) []Opening {
	var list []Opening
	for _, r := range rules {
		list = append(list, r.Opening())
	}
	slices.SortFunc(list, func(a, b Opening) int {
		return cmp.Or(int(a.Ports.First)-int(b.Ports.First), int(a.Ports.Last)-int(b.Ports.Last), int(a.Protocol)-int(b.Protocol))
	})
	return slices.Compact(list)
}

// NameRules returns the table's name rules.
func (t *Table) NameRules() []NameRule { return slices.Clone(t.names) }

// NameEndpoint returns the endpoint of the name rules; nil if there is none.
func (t *Table) NameEndpoint() *endpoint.Endpoint {
	if len(t.names) == 0 {
		return nil
	}
	return t.names[0].Endpoint
}

// Opened returns the route of one IPv6 address at which name rules have opened something, and whether
// the address needs a route of its own. The egress rules for the address come first: name rules add to
// them, and take nothing away.
func (t *Table) Opened(addr netip.Addr, openings []Opening) (Route, bool) {
	r := Route{Prefix: netip.PrefixFrom(addr, addr.BitLen())}
	outlets := t.outletsFor(addr)
	for _, o := range outlets {
		r.Ranges = append(r.Ranges, Range{o.Ports, o.Protocol, slices.Index(t.endpoints, o.Endpoint)})
	}
	_, own := t.outlets[r.Prefix]
	n := len(outlets)
	if ep := t.NameEndpoint(); ep != nil && (n == 0 || !outlets[n-1].isForAll()) {
		number := slices.Index(t.endpoints, ep)
		for _, o := range openings {
			r.Ranges = append(r.Ranges, Range{o.Ports, o.Protocol, number})
		}
	}
	return r, own || len(r.Ranges) > n
}

// checkNames returns what is wrong with name rules beside the other rules.
func (t *Table) checkNames() error {
	if len(t.names) == 0 {
		return nil
	}
	if n := len(t.names); n > NameRulesMax {
		return fmt.Errorf("%w --name-rule: there are %d, at most %d may be", ErrRule, n, NameRulesMax)
	}
	for _, r := range t.names {
		if r.Endpoint != t.names[0].Endpoint || r.Endpoint.Type != endpoint.IPv6 {
			return fmt.Errorf("%w --name-rule %q: name rules need one endpoint, of IPv6", ErrRule, r)
		}
	}
	if n := len(t.outlets); n > prefixesBesideNames {
		return fmt.Errorf("%w -e: %d prefixes, at most %d fit beside name rules", ErrRule, n, prefixesBesideNames)
	}
	openings := len(Openings(t.names))
	for p, outlets := range t.outlets {
		if n := len(outlets) + openings; p.Addr().Is6() && n > RangesMax {
			return fmt.Errorf("%w -e: %d port ranges apply to %s, those of name rules included, at most %d may", ErrRule, n, p, RangesMax)
		}
	}
	return nil
}
