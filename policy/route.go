package policy

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/tsugiki/tsugiki/endpoint"
)

// Route is the verdict of a Table about the addresses whose longest prefix in the table is Prefix.
// The kernel's tables and the image for C are made of routes.
type Route struct {
	Prefix netip.Prefix
	// Special says that only a rule that names the prefix, or a part of it, covers it.
	Special bool
	// Ranges are in order of preference. A port in no range is not reached.
	Ranges []Range
}

// Range is the destination of some ports of a Route.
type Range struct {
	Ports    endpoint.PortRange
	Protocol Protocol
	Endpoint int // its number in Table.Numbered
}

// Routes returns the table's routes, the longest prefix first.
func (t *Table) Routes() []Route {
	var routes []Route
	for p, outlets := range t.outlets {
		r := Route{Prefix: p, Special: isSpecial(p)}
		for _, o := range outlets {
			r.Ranges = append(r.Ranges, Range{o.Ports, o.Protocol, slices.Index(t.endpoints, o.Endpoint)})
		}
		routes = append(routes, r)
	}
	slices.SortFunc(routes, func(a, b Route) int {
		return cmp.Or(MappedBits(b.Prefix)-MappedBits(a.Prefix), a.Prefix.Addr().Compare(b.Prefix.Addr()))
	})
	return routes
}

// MappedBits returns the length of a prefix as an IPv6 prefix, with IPv4 mapped.
func MappedBits(p netip.Prefix) int {
	if p.Addr().Is4() {
		return p.Bits() + 96
	}
	return p.Bits()
}
