package rules

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/policy"
)

// Verdict is the result of a call, or of all calls that a rule covers.
type Verdict struct {
	Call     string `json:"call"`     // connect or bind
	Address  string `json:"address"`  // the address in the call
	Rule     string `json:"rule"`     // the rule that decides, with its flag; empty: none
	Endpoint string `json:"endpoint"` // the rule's; empty: the socket stays in the container
	Result   string `json:"result"`
	Why      string `json:"why"`
}

// OfEndpoints returns the rules that are in force in a container with these endpoints. A rule whose
// endpoint was deleted is not in force.
func OfEndpoints(list []api.Endpoint) (Rules, error) {
	var t api.Rules
	var names []string
	var leadTo string
	for _, e := range list {
		ep, err := ParseDefinition(e.Name, e.Definition)
		if err != nil {
			return Rules{}, err
		}
		t.Endpoints = append(t.Endpoints, ep.String())
		for _, r := range e.Rules {
			if in, is := strings.CutPrefix(r, "-i "); is {
				t.Ingress = append(t.Ingress, in)
			} else if name, is := strings.CutPrefix(r, NameRuleFlag+" "); is {
				names, leadTo = append(names, name), e.Name
			} else {
				t.Egress = append(t.Egress, strings.TrimPrefix(r, "-e "))
			}
		}
	}
	// Whether IPv4 is translated does not matter: the rules are in force.
	r, err := join(parseFor(t, true))
	if err != nil {
		return r, err
	}
	return r, r.addNames(names, leadTo)
}

// addNames adds name rules that lead to an endpoint.
func (r *Rules) addNames(texts []string, name string) error {
	if len(texts) == 0 {
		return nil
	}
	ep, err := r.Endpoints.Get(name)
	if err != nil {
		return err
	}
	for _, s := range texts {
		rule, err := policy.ParseNameRule(s)
		if err != nil {
			return err
		}
		rule.Endpoint = ep
		r.NameRules = append(r.NameRules, rule)
	}
	return nil
}

// Explain returns a Verdict for each rule, in the order in which they are compared, and one for
// calls that no rule covers. The error is that of policy.NewTable.
func (r *Rules) Explain() ([]Verdict, error) {
	t, err := r.table()
	if err != nil {
		return nil, err
	}
	var list []Verdict
	for _, rule := range t.EgressRules() {
		what, _, _ := strings.Cut(rule.String(), "=")
		list = append(list, Verdict{"connect", what, "-e " + rule.String(), rule.Endpoint.Name, leaves(rule.Endpoint), "the longest prefix decides, then the smallest range of ports, then a rule of one protocol"})
	}
	for _, rule := range t.NameRules() {
		list = append(list, Verdict{"connect", "hosts named " + rule.String(), NameRuleFlag + " " + rule.String(), rule.Endpoint.Name, leaves(rule.Endpoint), whyNamed})
	}
	list = append(list, Verdict{Call: "connect", Address: "any other", Result: staysInside, Why: "no rule covers it"})
	for _, rule := range t.IngressRules() {
		what, _, _ := strings.Cut(rule.WithFrom(nil).String(), "=")
		ports := endpoint.PortRange{First: rule.HostPort(rule.Ports.First), Last: rule.HostPort(rule.Ports.Last)}
		list = append(list, Verdict{"bind", what, "-i " + rule.String(), rule.Endpoint.Name, servesBy(rule, ports), "an exact address decides, then any address"})
	}
	return append(list, Verdict{Call: "bind", Address: "any other", Result: staysInside, Why: "no rule covers it"}), nil
}

// table compiles the rules.
func (r *Rules) table() (*policy.Table, error) {
	return policy.NewTable(r.Ingress, r.Egress, r.NameRules...)
}

const whyNamed = "it covers the addresses in answers for names that match, until their time is over"

const staysInside = "the socket stays in the container's network namespace"

// ExplainConnect returns the Verdict on connect(2), or on a datagram, to an address.
func (r *Rules) ExplainConnect(protocol policy.Protocol, to netip.AddrPort) (Verdict, error) {
	t, err := r.table()
	if err != nil {
		return Verdict{}, err
	}
	v := Verdict{Call: "connect", Address: to.String() + protocol.String(), Result: staysInside}
	rule := t.EgressRule(protocol, to)
	if rule.Endpoint == nil {
		v.Why = r.whyNoEgress(protocol, to)
		return v, nil
	}
	v.Rule, v.Endpoint, v.Result = "-e "+rule.String(), rule.Endpoint.Name, leaves(rule.Endpoint)
	v.Why = fmt.Sprintf("%s is the longest prefix of a rule that covers %s and port %d", rule.Prefix, to.Addr(), to.Port())
	return v, nil
}

// whyNoEgress names the rule that comes nearest to the call.
func (r *Rules) whyNoEgress(protocol policy.Protocol, to netip.AddrPort) string {
	addr := to.Addr().Unmap()
	special, isSpecial := policy.Special(addr)
	if why := r.couldBeNamed(protocol, to.Port()); why != "" && addr.Is6() && !isSpecial {
		return why
	}
	for _, rule := range r.Egress {
		switch {
		case !rule.Prefix.Contains(addr):
		case isSpecial && rule.Prefix.Bits() < special.Bits():
			return fmt.Sprintf("-e %s does not cover it: %s is special, and is covered only by a rule that names %s or a part of it", rule, addr, special)
		case !rule.Ports.Contains(to.Port()):
			return fmt.Sprintf("-e %s covers the address, and not port %d", rule, to.Port())
		case !rule.Protocol.Meets(protocol):
			return fmt.Sprintf("-e %s covers the address, and not %s", rule, strings.ToUpper(protocol.String()[1:]))
		}
	}
	return "no rule covers it" + r.otherFamily(addr, func(ip4 bool) bool {
		for _, rule := range r.Egress {
			if rule.Prefix.Addr().Is4() == ip4 {
				return true
			}
		}
		return false
	})
}

// ExplainBind returns the Verdict on bind(2) to an address.
func (r *Rules) ExplainBind(protocol policy.Protocol, at netip.AddrPort) (Verdict, error) {
	t, err := r.table()
	if err != nil {
		return Verdict{}, err
	}
	v := Verdict{Call: "bind", Address: at.String() + protocol.String(), Result: staysInside}
	rule, why := t.IngressRule(protocol, at), ""
	if rule.Endpoint == nil && at.Addr() == netip.IPv6Unspecified() {
		at = netip.AddrPortFrom(netip.IPv4Unspecified(), at.Port())
		rule, why = t.IngressRule(protocol, at), "; a socket that is not IPV6_V6ONLY binds IPv4 addresses, too"
	}
	switch {
	case rule.Endpoint == nil:
		v.Why = r.whyNoIngress(protocol, at)
		return v, nil
	case rule.Addr == at.Addr():
		v.Why = fmt.Sprintf("the rule names %s and port %d", rule.Addr, at.Port()) + why
	default:
		v.Why = fmt.Sprintf("%s stands for any address that the container has, but its loopback", rule.Addr)
	}
	_, port := t.Ingress(protocol, at)
	v.Rule, v.Endpoint, v.Result = "-i "+rule.String(), rule.Endpoint.Name, servesBy(rule, endpoint.PortRange{First: port, Last: port})
	return v, nil
}

// whyNoIngress names the rule that comes nearest to the call.
func (r *Rules) whyNoIngress(protocol policy.Protocol, at netip.AddrPort) string {
	near := ""
	for _, rule := range r.Ingress {
		any := rule.Addr.IsUnspecified() && rule.Addr.Is4() == at.Addr().Is4()
		switch {
		case rule.Addr == at.Addr() && !rule.Protocol.Meets(protocol) && rule.Ports.Contains(at.Port()):
			return fmt.Sprintf("-i %s is for the other protocol", rule)
		case rule.Addr == at.Addr() && rule.Protocol.Meets(protocol):
			near = fmt.Sprintf("-i %s covers the address, and not port %d", rule, at.Port())
		case any && at.Addr().IsLoopback() && rule.Ports.Contains(at.Port()):
			near = fmt.Sprintf("-i %s does not cover loopback addresses; name %s in a rule", rule, at.Addr())
		}
	}
	if near != "" {
		return near
	}
	return "no rule covers it" + r.otherFamily(at.Addr(), func(ip4 bool) bool {
		for _, rule := range r.Ingress {
			if rule.Addr.Is4() == ip4 {
				return true
			}
		}
		return false
	})
}

// otherFamily returns a text if only the other family has rules.
func (r *Rules) otherFamily(addr netip.Addr, has func(ip4 bool) bool) string {
	if ip4 := addr.Is4(); has(ip4) || !has(!ip4) {
		return ""
	} else if ip4 {
		return "; the rules are for IPv6"
	}
	return "; the rules are for IPv4"
}

// leaves names the address from which a socket connects through an endpoint.
func leaves(ep *endpoint.Endpoint) string {
	switch {
	case ep.Type == endpoint.Unix:
		return "to the host's unix socket " + ep.Path + in(ep)
	case ep.Addr.IsUnspecified():
		return "through the host, from an address that the host chooses" + in(ep)
	case ep.Dynamic():
		return fmt.Sprintf("through the host, from %s%s", ep.Addr, in(ep))
	}
	return fmt.Sprintf("through the host, from %s%s", netip.AddrPortFrom(ep.Addr, ep.Port.First), in(ep))
}

// servesBy names the address and ports of the host to which a rule binds sockets.
func servesBy(rule policy.Ingress, ports endpoint.PortRange) string {
	at := serves(rule.Endpoint, ports)
	if rule.Own {
		at += "; a TCP server listens in the container's network namespace, too"
	}
	if len(rule.From) > 0 {
		at += "; only for " + sources(rule.From)
	}
	return at
}

// sources names who reaches a server.
func sources(f policy.From) string {
	var in, out []string
	for _, s := range f {
		switch {
		case s.Pod != "":
			in = append(in, "pod "+s.Pod)
		case s.Except:
			out = append(out, s.Prefix.String())
		default:
			in = append(in, s.Prefix.String())
		}
	}
	if len(out) == 0 {
		return strings.Join(in, ", ")
	}
	return strings.Join(in, ", ") + ", except " + strings.Join(out, ", ")
}

// serves names the address of an endpoint on the host, with ports of the host.
func serves(ep *endpoint.Endpoint, ports endpoint.PortRange) string {
	switch {
	case ep.Type == endpoint.Unix:
		return "at the host's unix socket " + ep.Path + in(ep)
	case ports.Last == 0:
		return fmt.Sprintf("at the host's address %s, and a port that the host chooses%s", ep.Addr, in(ep))
	}
	return fmt.Sprintf("at the host's address %s, port %s%s", ep.Addr, ports, in(ep))
}

// in names the namespace of an endpoint that is not the host's.
func in(ep *endpoint.Endpoint) string {
	if ep.Netns == "" {
		return ""
	}
	return " in the network namespace " + ep.Netns
}
