package e2e

import (
	"net/netip"
	"slices"
)

// This file is the model of what a container's rules allow: pure functions, which know
// nothing of how the rules are enforced and share no code with what enforces them.

// modelPorts is a range of ports, both ends included. The zero value is any port.
type modelPorts struct{ first, last uint16 }

func (p modelPorts) contains(port uint16) bool {
	return p == modelPorts{} || p.first <= port && port <= p.last
}

func (p modelPorts) size() int {
	if p == (modelPorts{}) {
		return 1 << 16
	}
	return int(p.last) - int(p.first) + 1
}

// modelEndpoint is an address of the host; the unspecified one leaves the choice to the host.
type modelEndpoint struct {
	addr  netip.Addr
	ports modelPorts
}

// has tells whether the endpoint can be an address and port of the host.
func (e modelEndpoint) has(h modelHost, at netip.AddrPort) bool {
	if !e.ports.contains(at.Port()) {
		return false
	}
	if !e.addr.IsUnspecified() {
		return e.addr == at.Addr()
	}
	// A socket of all IPv6 addresses has the IPv4 ones too; and the loopback's, groups' and
	// broadcasts.
	of := func(l modelLink) bool { return h.broadcast(at.Addr(), l.name) }
	return (e.addr.Is6() || at.Addr().Is4()) &&
		(h.owns(at.Addr()) || len(specialOf(at.Addr())) > 0 || slices.ContainsFunc(h.links, of))
}

// modelEgress says that destinations are reached from an endpoint's address.
type modelEgress struct {
	prefix netip.Prefix
	ports  modelPorts
	from   modelEndpoint
}

// modelContainer is what one container was given.
type modelContainer struct {
	egress   []modelEgress
	ingress  []modelEndpoint // which it may bind, and be reached at
	nameable []modelEndpoint // which its programs may name: bind, be reached at and send from
	relay    []uint16        // ports on the host's loopback by which its own loopback is reached
}

// modelHost is the host's network.
type modelHost struct {
	own   []netip.Addr // without the loopback's
	links []modelLink
}

type modelLink struct {
	name   string
	prefix netip.Prefix
}

func (h modelHost) owns(addr netip.Addr) bool { return slices.Contains(h.own, addr) }

// road is the interface by which the host reaches an address.
func (h modelHost) road(to netip.Addr) string {
	if to.IsLoopback() || h.owns(to) {
		return "lo"
	}
	for _, l := range h.links {
		if l.prefix.Contains(to) {
			return l.name
		}
	}
	return ""
}

// modelSpecial are destinations that a rule covers only if it names them or a part of them.
var modelSpecial = []netip.Prefix{
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

// specialOf are the special prefixes that an address is in.
func specialOf(addr netip.Addr) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(modelSpecial), func(p netip.Prefix) bool { return !p.Contains(addr) })
}

// broadcast tells whether an address is that of all neighbours on a link of the host. On
// another link it is one like others.
func (h modelHost) broadcast(addr netip.Addr, link string) bool {
	return slices.ContainsFunc(h.links, func(l modelLink) bool { return addr.Is4() && addr == lastOf(l.prefix) && l.name == link })
}

// lastOf is the last address of an IPv4 prefix.
func lastOf(p netip.Prefix) netip.Addr {
	if !p.Addr().Is4() {
		return netip.Addr{}
	}
	b := p.Masked().Addr().As4()
	for bit := p.Bits(); bit < 32; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	return netip.AddrFrom4(b)
}

// outlet is the rule for a destination: of those with its port, that of the longest prefix,
// and then of the fewest ports; nil if there is none.
func (c modelContainer) outlet(to netip.AddrPort) *modelEgress {
	var best *modelEgress
	special := specialOf(to.Addr())
	for i, r := range c.egress {
		if !r.prefix.Contains(to.Addr()) || !r.ports.contains(to.Port()) {
			continue
		}
		if slices.ContainsFunc(special, func(s netip.Prefix) bool { return r.prefix.Bits() < s.Bits() }) {
			continue
		}
		if best == nil || r.prefix.Bits() > best.prefix.Bits() ||
			r.prefix.Bits() == best.prefix.Bits() && r.ports.size() < best.ports.size() {
			best = &c.egress[i]
		}
	}
	return best
}

// broadcasts tells whether a rule names the address of all neighbours.
func (r modelEgress) broadcasts() bool {
	all := netip.MustParsePrefix("255.255.255.255/32")
	return r.prefix == all
}

// serves tells whether the container may be reached at an address and port of the host.
func (c modelContainer) serves(h modelHost, at netip.AddrPort) bool {
	has := func(e modelEndpoint) bool { return e.has(h, at) }
	return slices.ContainsFunc(c.ingress, has) || slices.ContainsFunc(c.nameable, has)
}

// modelPacket is a packet with which something begins: a datagram, or a TCP SYN.
type modelPacket struct {
	from, to netip.AddrPort
	via      []netip.Addr // other addresses of a source route
	link     string       // by which it leaves
	tcp      bool
}

// modelVerdict is what the rules say of a packet.
type modelVerdict int

const (
	modelForbidden modelVerdict = iota
	modelAllowed
	modelAnswer // allowed to whoever has sent something to its source
	modelOwn    // on the container's own loopback
)

// sends judges a packet that leaves a host socket of the container.
func (c modelContainer) sends(h modelHost, p modelPacket) (modelVerdict, string) {
	if len(p.via) > 0 {
		return modelForbidden, "it has a source route"
	}
	// By which interface a datagram leaves, and from which of several addresses, is not promised:
	// see SECURITY.md.
	if p.tcp && p.link != h.road(p.to.Addr()) {
		return modelForbidden, "it leaves by " + p.link + ", where the host reaches the destination by " + h.road(p.to.Addr())
	}
	if p.link == "lo" && c.toOwn(h, p) {
		return modelAllowed, ""
	}
	if h.broadcast(p.to.Addr(), p.link) && !slices.ContainsFunc(c.egress, modelEgress.broadcasts) {
		return modelForbidden, "it is a broadcast, for which there is no rule"
	}
	rule := c.outlet(p.to)
	if rule != nil && (rule.from.leaves(h, p) || c.serves(h, p.from)) {
		return modelAllowed, ""
	}
	for _, e := range c.nameable {
		if e.has(h, p.from) && len(specialOf(p.to.Addr())) == 0 && p.from.Addr().Is4() == e.addr.Is4() {
			return modelAllowed, ""
		}
	}
	if !p.tcp && c.serves(h, p.from) {
		return modelAnswer, "nobody has asked from there"
	}
	if rule != nil {
		return modelForbidden, "its source is not that of the rule for " + rule.prefix.String()
	}
	return modelForbidden, "no rule covers the destination"
}

// onLoopback tells whether a packet that is of the container's loopback may be on it, if it goes to no
// service of the host's: from any of the host's addresses to a loopback one or a server of the
// container's, and from there to what a rule covers, whatever the source that it wants. asked says that
// somebody has asked from where the packet goes.
func (c modelContainer) onLoopback(h modelHost, p modelPacket, asked bool) bool {
	own := func(at netip.AddrPort) bool { return at.Addr().IsLoopback() || c.serves(h, at) }
	if len(p.via) > 0 || !p.from.Addr().IsLoopback() && !p.to.Addr().IsLoopback() {
		return false
	}
	return own(p.to) && (own(p.from) || h.owns(p.from.Addr())) ||
		c.outlet(p.to) != nil || asked && c.lends(h, p.to.Addr())
}

// lends tells whether an egress rule leads from an address of the host.
func (c modelContainer) lends(h modelHost, addr netip.Addr) bool {
	return slices.ContainsFunc(c.egress, func(r modelEgress) bool {
		return r.from.addr == addr || r.from.addr.IsUnspecified() && r.from.addr.Is4() == addr.Is4() && h.owns(addr)
	})
}

// toOwn tells whether a packet on the host's loopback is for the container's own servers,
// by its relay or on the host.
func (c modelContainer) toOwn(h modelHost, p modelPacket) bool {
	if slices.Contains(c.relay, p.to.Port()) || slices.Contains(c.relay, p.from.Port()) {
		return !p.tcp
	}
	if p.to.Port() == 0 {
		return true // one that has gone: nobody can have this port
	}
	return slices.ContainsFunc(c.ingress, func(e modelEndpoint) bool { return e.has(h, p.to) })
}

// leaves tells whether a packet has a source that the endpoint gives: where that leaves the
// choice to the host, any of the host's, but the loopback's only for what stays there.
func (e modelEndpoint) leaves(h modelHost, p modelPacket) bool {
	if !e.addr.IsUnspecified() {
		return p.from.Addr() == e.addr
	}
	return h.owns(p.from.Addr()) || p.from.Addr().IsLoopback() && p.link == "lo" && !p.to.Addr().IsGlobalUnicast()
}

// accepts tells whether a connection to an address and port of the host may be accepted.
func (c modelContainer) accepts(h modelHost, at netip.AddrPort) bool { return c.serves(h, at) }

// hears judges a datagram that a socket of the container has received on the host.
func (c modelContainer) hears(h modelHost, p modelPacket) bool {
	if c.serves(h, p.to) || c.outlet(p.from) != nil {
		return true
	}
	if p.link != "lo" {
		return false
	}
	return slices.Contains(c.relay, p.to.Port()) || slices.Contains(c.relay, p.from.Port()) || c.serves(h, p.from)
}

// holds tells whether a socket of the container may have a port of the host. Those of the
// host's ephemeral range are anybody's, and private ports are above it.
func (c modelContainer) holds(h modelHost, at netip.AddrPort, ephemeral modelPorts) bool {
	if at.Port() == 0 || at.Port() >= ephemeral.first || slices.Contains(c.relay, at.Port()) {
		return true
	}
	if slices.ContainsFunc(c.egress, func(r modelEgress) bool { return r.from.ports.first == at.Port() }) {
		return true
	}
	return slices.ContainsFunc(slices.Concat(c.ingress, c.nameable), func(e modelEndpoint) bool {
		return e.ports != modelPorts{} && e.ports.contains(at.Port()) &&
			(at.Addr().IsUnspecified() || e.addr.IsUnspecified() || e.addr == at.Addr())
	})
}
