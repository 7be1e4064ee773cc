package netns

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// SourcesFor returns the default source addresses of the namespace for destinations of a prefix:
// the kernel's answers for the widest routes that lead there. If no route leads there, there are
// none. Routes within these routes, for example to the host's own bridges, may have other sources.
func (ns *NS) SourcesFor(prefix netip.Prefix) (list []netip.Addr, err error) {
	err = ns.Do(func() error {
		to, err := widestRoutes(prefix)
		if err != nil {
			return err
		}
		for _, r := range to {
			source, err := sourceFor(narrower(r, prefix))
			if err != nil {
				return err
			}
			if source.IsValid() && !slices.Contains(list, source) {
				list = append(list, source)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("find the source of packets to %s: %w", prefix, err)
	}
	return list, nil
}

// widestRoutes returns the destinations of the main table's routes that lead into a prefix, but for
// those that lie in another of them.
func widestRoutes(prefix netip.Prefix) (widest []netip.Prefix, err error) {
	family := netlink.FAMILY_V4
	if prefix.Addr().Is6() {
		family = netlink.FAMILY_V6
	}
	routes, err := Dump(func() ([]netlink.Route, error) { return netlink.RouteList(nil, family) })
	if err != nil {
		return nil, err
	}
	var all []netip.Prefix
	for _, r := range routes {
		to := netip.PrefixFrom(unspecified(prefix), 0)
		if r.Dst != nil {
			addr, ok := netip.AddrFromSlice(r.Dst.IP)
			if !ok {
				return nil, fmt.Errorf("route to %s", r.Dst)
			}
			bits, _ := r.Dst.Mask.Size()
			to = netip.PrefixFrom(addr.Unmap(), bits)
		}
		if r.Type == unix.RTN_UNICAST && to.Overlaps(prefix) && !to.Addr().IsLinkLocalUnicast() {
			all = append(all, to)
		}
	}
	slices.SortFunc(all, func(a, b netip.Prefix) int { return a.Bits() - b.Bits() })
	for _, r := range all {
		if !slices.ContainsFunc(widest, r.Overlaps) {
			widest = append(widest, r)
		}
	}
	return widest, nil
}

func unspecified(prefix netip.Prefix) netip.Addr {
	if prefix.Addr().Is6() {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// narrower returns the one of two overlapping prefixes that is in the other.
func narrower(a, b netip.Prefix) netip.Prefix {
	if b.Bits() > a.Bits() {
		return b.Masked()
	}
	return a.Masked()
}

// first returns an address of a prefix: of the default route one of those that are for documentation
// (RFC 5737, RFC 3849), which nobody has a route for.
func first(p netip.Prefix) netip.Addr {
	switch {
	case p.Bits() == 0 && p.Addr().Is6():
		return netip.MustParseAddr("2001:db8:ffff:ffff::1")
	case p.Bits() == 0:
		return netip.MustParseAddr("192.0.2.1")
	case p.IsSingleIP():
		return p.Addr()
	}
	return p.Addr().Next()
}

// ownMax is the number of the namespace's own addresses that are skipped.
const ownMax = 16

// sourceFor returns the source of packets to a prefix; none where they cannot go. For one of the
// namespace's own addresses, the source would be that address, so sourceFor asks for a neighbouring
// address.
func sourceFor(to netip.Prefix) (source netip.Addr, err error) {
	addr := first(to)
	for try := 0; try < ownMax && to.Contains(addr); try++ {
		route, err := routeTo(addr, netip.Addr{})
		if err != nil || route == nil {
			return netip.Addr{}, err
		}
		source, _ = netip.AddrFromSlice(route.Src)
		if route.Type != unix.RTN_LOCAL {
			break
		}
		addr = addr.Next()
	}
	return source.Unmap(), nil
}

// routeTo returns the route of packets to an address; nil where they cannot go. The routes choose the
// source if it is the zero Addr.
func routeTo(addr, source netip.Addr) (*netlink.Route, error) {
	routes, err := netlink.RouteGetWithOptions(addr.AsSlice(), &netlink.RouteGetOptions{SrcAddr: source.AsSlice()})
	for _, refusal := range []error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EINVAL /* blackhole */, unix.EACCES /* prohibit */} {
		if errors.Is(err, refusal) {
			return nil, nil
		}
	}
	if err != nil || len(routes) == 0 {
		return nil, err
	}
	return &routes[0], nil
}

// Way is how packets leave a namespace to an address.
type Way struct {
	Device int        // the number of the link; 0: they cannot go, or stay on the machine
	Next   netip.Addr // the address of the next hop: a router, or the destination itself
	Source netip.Addr // the source that the routes choose, or that was asked for
}

// Way returns the way of packets to an IPv6 address. Routes may be chosen by the source. The routes choose
// the source themselves if it is the zero Addr or the unspecified one.
func (ns *NS) Way(to, source netip.Addr) (way Way, err error) {
	if source.IsUnspecified() {
		source = netip.Addr{}
	}
	err = ns.Do(func() error {
		route, err := routeTo(to, source)
		if err != nil || route == nil || route.Type == unix.RTN_LOCAL {
			return err
		}
		way = Way{Device: route.LinkIndex, Next: to}
		way.Source, _ = netip.AddrFromSlice(route.Src)
		if source.IsValid() {
			way.Source = source
		}
		if router, is := netip.AddrFromSlice(route.Gw); is {
			way.Next = router
		}
		return nil
	})
	if err != nil {
		return Way{}, fmt.Errorf("find the way to %s: %w", to, err)
	}
	return way, nil
}
