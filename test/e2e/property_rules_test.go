package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// propertyRules are the random rules of one container: as tsugiki takes them, as the model
// does, and what the driver has to know of them.
type propertyRules struct {
	modelContainer
	flags  []string
	build  string // of the driver
	raw    bool   // it was given CAP_NET_RAW, which lets it mark packets
	bridge bool   // else a namespace of its own that has only a loopback
	names  []string
	views  []netip.AddrPort // what ingress rules name
	favors []string         // addresses that an egress rule covers
}

// propertyPrefixes are what egress rules are for, the rarer ones once.
var propertyPrefixes = []string{
	"0.0.0.0/0", "0.0.0.0/0", "198.51.100.0/24", "198.51.100.0/24", "198.51.100.2/32", "198.51.100.2/32",
	"203.0.113.0/24", "203.0.113.2/32", "198.51.100.1/32", "198.51.100.3/32", "127.0.0.1/32", "169.254.7.0/24",
	"239.1.2.0/24", "198.51.100.255/32", "255.255.255.255/32", "10.88.0.0/24", "198.51.100.0/30",
	"::/0", "::/0", "2001:db8:1::/64", "2001:db8:1::2/128", "2001:db8:2::/64", "2001:db8:1::1/128", "::1/128", "ff15::/16",
}

// propertySources are where they leave from.
var propertySources = map[bool][]string{
	true:  {"0.0.0.0", "0.0.0.0", hostAddr4, sourceAddr4, otherHostAddr4},
	false: {"::", "::", hostAddr6, sourceAddr6, otherHostAddr6},
}

// newPropertyRules makes rules for the container of an index, which its ports on the host
// depend on.
func newPropertyRules(r *rand.Rand, index int) *propertyRules {
	p := &propertyRules{build: pick(r, "static", "dynamic"), bridge: r.IntN(2) == 0}
	p.flags = append(p.flags, "--mode", pick(r, "auto", "auto", "seccomp"))
	if p.build == "dynamic" && r.IntN(4) == 0 {
		p.flags[1] = "preload"
	}
	switch r.IntN(6) {
	case 0, 1, 2:
		p.flags = append(p.flags, "-u", "65534:65534")
	case 3:
		p.raw = true
		p.flags = append(p.flags, "--cap-add", "NET_RAW")
	}
	for n := range r.IntN(5) {
		p.addEgress(r, index, n)
	}
	for n := range r.IntN(3) {
		p.addIngress(r, index, n)
	}
	if len(p.egress)+len(p.ingress) == 0 {
		p.addEgress(r, index, 9)
	}
	if r.IntN(4) == 0 {
		p.addNameable(r)
	}
	p.names = append(p.names, "e-1", "i-1", "e-2", "default-source")
	return p
}

func pick(r *rand.Rand, of ...string) string { return of[r.IntN(len(of))] }

// define writes an endpoint down and returns its name.
func (p *propertyRules) define(name string, e modelEndpoint, more string) string {
	kind, port := "ipv6", "dynamic"
	if e.addr.Is4() {
		kind = "ipv4"
	}
	if e.ports != (modelPorts{}) {
		port = e.ports.String()
	}
	p.flags = append(p.flags, "--endpoint", fmt.Sprintf("%s type %s addr %s port %s%s", name, kind, e.addr, port, more))
	p.names = append(p.names, name)
	return name
}

func (p modelPorts) String() string {
	if p.first == p.last {
		return strconv.Itoa(int(p.first))
	}
	return fmt.Sprintf("%d-%d", p.first, p.last)
}

func (p *propertyRules) addEgress(r *rand.Rand, index, n int) {
	e := modelEgress{prefix: netip.MustParsePrefix(propertyPrefixes[r.IntN(len(propertyPrefixes))])}
	e.from.addr = netip.MustParseAddr(pick(r, propertySources[e.prefix.Addr().Is4()]...))
	switch r.IntN(4) {
	case 0:
		e.ports = modelPorts{allowedPort, allowedPort}
	case 1:
		e.ports = modelPorts{allowedPort, allowedPort + 1}
	}
	same := func(o modelEgress) bool { return o.prefix == e.prefix && o.ports == e.ports }
	if slices.ContainsFunc(p.egress, same) {
		return
	}
	source := e.from.addr.String()
	if r.IntN(2) == 0 {
		if r.IntN(4) == 0 {
			port := uint16(21000 + 10*index + n)
			e.from.ports = modelPorts{port, port}
		}
		source = p.define(fmt.Sprintf("out%d", n), e.from, "")
	}
	rule := e.prefix.String()
	if e.ports != (modelPorts{}) {
		rule = strings.Replace("["+rule+"]:"+e.ports.String(), "[]", "", 1)
		if e.prefix.Addr().Is4() {
			rule = e.prefix.String() + ":" + e.ports.String()
		}
	}
	p.flags = append(p.flags, "-e", rule+"="+source)
	p.egress = append(p.egress, e)
	for _, to := range propertyDestinations {
		if addr, err := netip.ParseAddr(to); err == nil && e.prefix.Contains(addr) {
			p.favors = append(p.favors, to)
		}
	}
}

func (p *propertyRules) addIngress(r *rand.Rand, index, n int) {
	view := uint16(8000 + n)
	port := uint16(8100 + 10*index + n)
	e := modelEndpoint{ports: modelPorts{port, port}}
	is4 := r.IntN(3) != 0
	e.addr = netip.MustParseAddr(pick(r, propertySources[is4]...))
	bound := pick(r, "0.0.0.0", "0.0.0.0", hostAddr4)
	if !is4 {
		bound = pick(r, "[::]", "[::]", "["+hostAddr6+"]")
	}
	views := modelPorts{view, view}
	if r.IntN(4) == 0 { // the same range at home and on the host
		e.ports = modelPorts{port + 100, port + 103}
		views, view = e.ports, e.ports.first+1
		if n == 1 {
			return // which would overlap
		}
	}
	to := e.addr.String()
	if !is4 {
		to = "[" + to + "]"
	}
	to += ":" + e.ports.String()
	if r.IntN(2) == 0 {
		to = p.define(fmt.Sprintf("in%d", n), e, "")
	}
	p.flags = append(p.flags, "-i", fmt.Sprintf("%s:%s=%s", bound, views, to))
	p.ingress = append(p.ingress, e)
	p.views = append(p.views, netip.AddrPortFrom(netip.MustParseAddr(strings.Trim(bound, "[]")), view))
}

func (p *propertyRules) addNameable(r *rand.Rand) {
	is4 := r.IntN(2) == 0
	e := modelEndpoint{addr: netip.MustParseAddr(pick(r, propertySources[is4][2:]...))}
	p.define("mine", e, " nameable")
	p.names = append(p.names, "mine")
	p.nameable = append(p.nameable, e)
}
