package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/tsugiki/tsugiki/endpoint"
)

// Parser reads the rules of one container like ParseIngress and ParseEgress. In its rules, a host
// address may stand in place of an endpoint's name:
//
//	ADDR:PORT[-PORT][/tcp|/udp][+own][+SOURCE]...=HOST[:PORT[-PORT]]   without ports: the program's ports
//	PREFIX[:PORT[-PORT]][/tcp|/udp]=HOST                               from any port
//
// Without an address, an ingress rule is one for each family, to two endpoints, see
// endpoint.ParseAll; or to the same unix one:
//
//	:PORT[-PORT][/tcp|/udp][+own][+SOURCE]...=NAME     0.0.0.0:PORT=NAME.4 and [::]:PORT=NAME.6
//
// Such a rule gets an endpoint of its own, i-N or e-N for the N-th rule of its kind. Egress rules
// of the same address share the endpoint of the first one. The name of an endpoint means that
// endpoint, even if the name could be an address.
type Parser struct {
	Endpoints *endpoint.Set // endpoints that rules may name; Parser adds those of addresses
	// Translated lets an ingress rule for IPv4 lead to an IPv6 address.
	Translated bool

	ingress, egress int // rules so far
	outlets         map[netip.Addr]*endpoint.Endpoint
}

// Ingress reads the next ingress rule, or two in one.
func (p *Parser) Ingress(s string) ([]Ingress, error) {
	p.ingress++
	texts := []string{s}
	if ports, name, found := strings.Cut(s, "="); found && strings.HasPrefix(s, ":") && !strings.HasPrefix(s, "::") {
		names := []string{name + endpoint.Suffix4, name + endpoint.Suffix6}
		if ep, err := p.Endpoints.Get(name); err == nil && ep.Type == endpoint.Unix {
			names = []string{name, name}
		}
		texts = []string{"0.0.0.0" + ports + "=" + names[0], "[::]" + ports + "=" + names[1]}
	}
	var list []Ingress
	for _, text := range texts {
		r, err := p.ingressRule(text)
		if err != nil {
			return nil, err
		}
		list = append(list, r)
	}
	return list, nil
}

func (p *Parser) ingressRule(s string) (Ingress, error) {
	what, host, is := p.cutHost(s)
	if !is {
		return readIngress(s, p.Endpoints, p.Translated)
	}
	r, err := p.ingressTo(what, host)
	if err != nil {
		return r, fmt.Errorf("%w -i %q: %w", ErrRule, s, err)
	}
	return r, nil
}

func (p *Parser) ingressTo(what, host string) (Ingress, error) {
	r, err := ingressOf(what)
	if err != nil {
		return r, err
	}
	r.Translated = p.Translated
	family := r.Addr
	if to, _, perr := splitPorts(host); p.Translated && perr == nil && strings.Contains(to, ":") {
		family = netip.IPv6Unspecified()
	}
	addr, text, err := parseHost(host, family)
	if err != nil {
		return r, err
	}
	ports := r.Ports
	if text != "" {
		if ports, err = endpoint.ParsePortRange(text); err != nil {
			return r, err
		}
		switch {
		case ports.First == 0:
			return r, errors.New("the host's port cannot be 0; leave it out for that of the program")
		case ports != r.Ports && (ports.Size() > 1 || r.Ports.Size() > 1):
			return r, fmt.Errorf("the ports %s do not fit %s; leave the host's out, or write the same range", r.Ports, ports)
		}
	}
	r.Endpoint, err = p.add("i", p.ingress, addr, ports)
	return r, err
}

// Egress reads the next egress rule.
func (p *Parser) Egress(s string) ([]Egress, error) {
	p.egress++
	r, err := p.egressRule(s)
	return []Egress{r}, err
}

func (p *Parser) egressRule(s string) (Egress, error) {
	what, host, is := p.cutHost(s)
	if !is {
		return ParseEgress(s, p.Endpoints)
	}
	r, err := p.egressTo(what, host)
	if err != nil {
		return r, fmt.Errorf("%w -e %q: %w", ErrRule, s, err)
	}
	return r, nil
}

func (p *Parser) egressTo(what, host string) (Egress, error) {
	r, err := egressOf(what)
	if err != nil {
		return r, err
	}
	addr, ports, err := parseHost(host, r.Prefix.Addr())
	if err != nil {
		return r, err
	}
	if ports != "" {
		return r, errors.New("a host address to connect from has no port here; define an endpoint for a certain port")
	}
	if r.Endpoint = p.outlets[addr]; r.Endpoint != nil {
		return r, nil
	}
	if r.Endpoint, err = p.add("e", p.egress, addr, endpoint.PortRange{}); err != nil {
		return r, err
	}
	if p.outlets == nil {
		p.outlets = map[netip.Addr]*endpoint.Endpoint{}
	}
	p.outlets[addr] = r.Endpoint
	return r, nil
}

// add makes the endpoint of an address.
func (p *Parser) add(kind string, rule int, addr netip.Addr, ports endpoint.PortRange) (*endpoint.Endpoint, error) {
	ep := &endpoint.Endpoint{Name: fmt.Sprintf("%s-%d", kind, rule), Type: endpoint.IPv6, Addr: addr, Port: ports}
	if addr.Is4() {
		ep.Type = endpoint.IPv4
	}
	if _, err := p.Endpoints.Get(ep.Name); err == nil {
		return nil, fmt.Errorf("its endpoint's name would be %q, which is taken; give that endpoint another", ep.Name)
	}
	return ep, p.Endpoints.Add(ep)
}

// cutHost splits a rule that is for a host address and not for an endpoint.
func (p *Parser) cutHost(s string) (what, host string, is bool) {
	what, host, err := splitRule(s)
	if err != nil {
		return "", "", false
	}
	if _, err := p.Endpoints.Get(host); err == nil {
		return "", "", false
	}
	if strings.ContainsAny(host, ":[]%/") { // no name may contain these
		return what, host, true
	}
	_, err = netip.ParseAddr(host)
	return what, host, err == nil
}

// parseHost reads an address of the family of another one, and returns the text of its ports.
func parseHost(s string, family netip.Addr) (addr netip.Addr, ports string, err error) {
	text, ports, err := splitPorts(s)
	if err != nil {
		return addr, "", err
	}
	addr, err = netip.ParseAddr(text)
	switch {
	case err != nil || addr.Zone() != "" || addr.Is4In6():
		return addr, "", fmt.Errorf("%q is neither an endpoint nor a host address", text)
	case addr.Is4() && family.Is6():
		return addr, "", fmt.Errorf("%s is an IPv4 address, and the rule is for IPv6", addr)
	case addr.Is6() && family.Is4():
		return addr, "", fmt.Errorf("%s is an IPv6 address, and the rule is for IPv4", addr)
	}
	return addr, ports, nil
}
