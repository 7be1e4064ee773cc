package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/tsugiki/tsugiki/endpoint"
)

// ErrRule is wrapped by every error about the text of a rule or about rules that contradict each
// other.
var ErrRule = errors.New("bad rule")

// Ingress gives a host address to a program that binds Addr and one of Ports.
type Ingress struct {
	// Addr is the address that the program binds. The unspecified address stands for any address of
	// its family except loopback addresses.
	Addr     netip.Addr
	Ports    endpoint.PortRange
	Protocol Protocol
	// Own makes a TCP server listen at its address in the container's own namespace too.
	Own bool
	// Translated lets an IPv6 endpoint serve an IPv4 address.
	Translated bool
	// From says who reaches the servers at the endpoint.
	From     From
	Endpoint *endpoint.Endpoint
	// Number is the rule's number in its container, by which the kernel programs know it, from 1 to
	// 65535; 0: it has none. A rule with From needs one to be enforced.
	Number int
}

// ownWord follows the ports and the protocol of an ingress rule with Own.
const ownWord = "+own"

// HostPort returns the port of the host for a port that the program binds; 0 stands for any free
// port.
func (r Ingress) HostPort(port uint16) uint16 {
	if r.Endpoint.Dynamic() || r.Endpoint.Port.Size() > 1 {
		return port
	}
	return r.Endpoint.Port.First
}

// Egress says through which endpoint a program reaches the addresses of Prefix on Ports.
type Egress struct {
	Prefix   netip.Prefix // masked
	Ports    endpoint.PortRange
	Protocol Protocol
	Endpoint *endpoint.Endpoint
}

// AllPorts are the ports of a rule that names none.
var AllPorts = endpoint.PortRange{First: 0, Last: 65535}

// ParseIngress reads ADDR:PORT[-PORT][/tcp|/udp][+own][+SOURCE]...=ENDPOINT; an IPv6 address stands
// in brackets, and SOURCE is what ParseSource reads. The endpoint must be in eps and take the ports
// of the rule.
func ParseIngress(s string, eps *endpoint.Set) (Ingress, error) {
	return readIngress(s, eps, false)
}

// readIngress is ParseIngress. translated is Parser's Translated.
func readIngress(s string, eps *endpoint.Set, translated bool) (Ingress, error) {
	r, err := parseIngress(s, eps, translated)
	if err != nil {
		return r, fmt.Errorf("%w -i %q: %w", ErrRule, s, err)
	}
	return r, nil
}

func parseIngress(s string, eps *endpoint.Set, translated bool) (Ingress, error) {
	what, ep, err := splitEndpoint(s, eps)
	if err != nil {
		return Ingress{}, err
	}
	r, err := ingressOf(what)
	r.Endpoint, r.Translated = ep, translated
	if err != nil {
		return r, err
	}
	return r, r.fits()
}

// ingressOf reads the part before the "=".
func ingressOf(what string) (Ingress, error) {
	var r Ingress
	what, words, worded := strings.Cut(what, "+")
	what, r.Protocol = CutProtocol(what)
	addr, ports, err := splitPorts(what)
	if err != nil {
		return r, err
	}
	if ports == "" {
		return r, errors.New("the port is missing; write ADDR:PORT[-PORT][/tcp|/udp][+own][+from:PREFIX]=ENDPOINT, [ADDR]:PORT for IPv6")
	}
	if worded {
		if err := r.setWords(strings.Split(words, "+")); err != nil {
			return r, err
		}
	}
	if r.Addr, err = netip.ParseAddr(addr); err != nil || r.Addr.Zone() != "" || r.Addr.Is4In6() {
		return r, fmt.Errorf("%q is no IP address", addr)
	}
	r.Ports, err = endpoint.ParsePortRange(ports)
	if err == nil {
		err = r.fitsOwn()
	}
	return r, err
}

// setWords reads the words of a rule, each of which stands after a "+".
func (r *Ingress) setWords(words []string) error {
	for _, w := range words {
		if "+"+w == ownWord && !r.Own {
			r.Own = true
			continue
		}
		s, err := ParseSource(w)
		if err != nil {
			return err
		}
		r.From = append(r.From, s)
	}
	return r.From.check()
}

// fitsOwn returns what is wrong with a rule that has Own, apart from its endpoint.
func (r Ingress) fitsOwn() error {
	switch {
	case !r.Own:
		return nil
	case r.Protocol == UDP:
		return fmt.Errorf("%s is for TCP servers; write it in a rule with /tcp", ownWord)
	case r.Addr.IsLoopback():
		return fmt.Errorf("%s is for addresses that other containers reach, and %s is a loopback address", ownWord, r.Addr)
	case r.Ports.First == 0:
		return fmt.Errorf("%s needs a port other than 0", ownWord)
	}
	return nil
}

// With returns the rule with another endpoint, which has to take its ports too.
func (r Ingress) With(ep *endpoint.Endpoint) (Ingress, error) {
	r.Endpoint = ep
	if err := r.fits(); err != nil {
		return r, fmt.Errorf("%w -i %q: %w", ErrRule, r, err)
	}
	return r, nil
}

// String returns the rule as ParseIngress reads it.
func (r Ingress) String() string {
	addr := r.Addr.String()
	if r.Addr.Is6() {
		addr = "[" + addr + "]"
	}
	own := ""
	if r.Own {
		own = ownWord
	}
	return fmt.Sprintf("%s:%s%s%s%s=%s", addr, r.Ports, r.Protocol, own, r.From, r.Endpoint.Name)
}

// WithFrom returns the rule with other sources.
func (r Ingress) WithFrom(f From) Ingress {
	r.From = f
	return r
}

func (r Ingress) fits() error {
	ep := r.Endpoint
	if err := sameFamily(r.Addr, ep); err != nil && (!r.Translated || r.Addr.Is6()) {
		return err
	}
	if err := r.fitsFrom(); err != nil {
		return err
	}
	switch {
	case ep.Type == endpoint.Unix && r.Own:
		return fmt.Errorf("%s needs an endpoint with an address, and %q is a unix one", ownWord, ep.Name)
	case ep.Type == endpoint.Unix || (!ep.Dynamic() && ep.Port.Size() == 1):
		if r.Ports.Size() > 1 {
			return fmt.Errorf("%d ports do not fit the one of endpoint %q; give it \"port dynamic\" or the same range", r.Ports.Size(), ep.Name)
		}
	case !ep.Dynamic():
		if !ep.Port.Contains(r.Ports.First) || !ep.Port.Contains(r.Ports.Last) {
			return fmt.Errorf("ports %s are not all in the range %s of endpoint %q", r.Ports, ep.Port, ep.Name)
		}
	}
	return nil
}

// fitsFrom returns why sources cannot be enforced at the endpoint.
func (r Ingress) fitsFrom() error {
	switch {
	case len(r.From) == 0:
		return nil
	case r.Endpoint.Type == endpoint.Unix:
		return fmt.Errorf("+from: needs an endpoint with an address, and %q is a unix one", r.Endpoint.Name)
	case r.Endpoint.Nameable:
		return fmt.Errorf("+from: has no effect on programs that name the endpoint themselves, and %q is nameable", r.Endpoint.Name)
	}
	return nil
}

// ParseEgress reads PREFIX[:PORT[-PORT]][/tcp|/udp]=ENDPOINT; an IPv6 prefix with ports stands in
// brackets, and an address without a length is the prefix of itself alone. The unspecified address
// needs a length, because without one it is most likely a misspelt /0. The endpoint must be in eps.
func ParseEgress(s string, eps *endpoint.Set) (Egress, error) {
	r, err := parseEgress(s, eps)
	if err != nil {
		return r, fmt.Errorf("%w -e %q: %w", ErrRule, s, err)
	}
	return r, nil
}

func parseEgress(s string, eps *endpoint.Set) (Egress, error) {
	what, ep, err := splitEndpoint(s, eps)
	if err != nil {
		return Egress{}, err
	}
	r, err := egressOf(what)
	r.Endpoint = ep
	if err != nil {
		return r, err
	}
	return r, r.fits()
}

// egressOf reads the part before the "=".
func egressOf(what string) (Egress, error) {
	r := Egress{Ports: AllPorts}
	what, r.Protocol = CutProtocol(what)
	prefix, ports, err := splitPorts(what)
	if err != nil {
		return r, err
	}
	if ports != "" {
		if r.Ports, err = endpoint.ParsePortRange(ports); err != nil {
			return r, err
		}
	}
	r.Prefix, err = ParsePrefix(prefix)
	return r, err
}

// With returns the rule with another endpoint, which has to fit it too.
func (r Egress) With(ep *endpoint.Endpoint) (Egress, error) {
	r.Endpoint = ep
	if err := r.fits(); err != nil {
		return r, fmt.Errorf("%w -e %q: %w", ErrRule, r, err)
	}
	return r, nil
}

// String returns the rule as ParseEgress reads it.
func (r Egress) String() string {
	switch {
	case r.Ports == AllPorts:
		return fmt.Sprintf("%s%s=%s", r.Prefix, r.Protocol, r.Endpoint.Name)
	case r.Prefix.Addr().Is6():
		return fmt.Sprintf("[%s]:%s%s=%s", r.Prefix, r.Ports, r.Protocol, r.Endpoint.Name)
	}
	return fmt.Sprintf("%s:%s%s=%s", r.Prefix, r.Ports, r.Protocol, r.Endpoint.Name)
}

func (r Egress) fits() error {
	ep := r.Endpoint
	if err := sameFamily(r.Prefix.Addr(), ep); err != nil {
		return err
	}
	if ep.Type != endpoint.Unix && ep.Port.Size() > 1 {
		return fmt.Errorf("endpoint %q has the ports %s; to connect from it needs \"port dynamic\" or one port", ep.Name, ep.Port)
	}
	return nil
}

// ParsePrefix reads a PREFIX of an egress rule: an IP prefix without bits after its length, or an
// address.
func ParsePrefix(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		addr, addrErr := netip.ParseAddr(s)
		if addrErr != nil {
			return p, fmt.Errorf("%q is neither an IP prefix nor an address", s)
		}
		if addr.IsUnspecified() {
			return p, fmt.Errorf("%s without a length is one address, which nobody has; write %s/0 for all of its family", s, s)
		}
		if addr.Zone() != "" { // a prefix has none
			return p, errNoPrefix(s)
		}
		p = netip.PrefixFrom(addr, addr.BitLen())
	}
	if p.Addr().Is4In6() {
		return p, errNoPrefix(s)
	}
	if p != p.Masked() {
		return p, fmt.Errorf("%q has bits set beyond its length; %s is meant", s, p.Masked())
	}
	return p, nil
}

func errNoPrefix(s string) error {
	return fmt.Errorf("%q is no IP prefix: write IPv4 as such, and leave zones out", s)
}

func splitEndpoint(s string, eps *endpoint.Set) (string, *endpoint.Endpoint, error) {
	what, name, err := splitRule(s)
	if err != nil {
		return "", nil, err
	}
	ep, err := eps.Get(name)
	return what, ep, err
}

func splitRule(s string) (what, name string, err error) {
	what, name, found := strings.Cut(s, "=")
	if !found || what == "" || name == "" {
		return "", "", errors.New("\"=ENDPOINT\" is missing")
	}
	return what, name, nil
}

// splitPorts splits ADDR, ADDR:PORTS, [ADDR]:PORTS, or an IPv6 ADDR with its colons.
func splitPorts(s string) (addr, ports string, err error) {
	if inner, ok := strings.CutPrefix(s, "["); ok {
		addr, rest, closed := strings.Cut(inner, "]")
		if !closed {
			return "", "", errors.New("\"]\" is missing")
		}
		if rest == "" {
			return addr, "", nil
		}
		ports, ok := strings.CutPrefix(rest, ":")
		if !ok || ports == "" {
			return "", "", fmt.Errorf("%q after \"]\"; :PORT is meant", rest)
		}
		return addr, ports, nil
	}
	if strings.Count(s, ":") != 1 {
		return s, "", nil
	}
	addr, ports, _ = strings.Cut(s, ":")
	if ports == "" {
		return "", "", errors.New("the port after \":\" is missing")
	}
	return addr, ports, nil
}

func sameFamily(addr netip.Addr, ep *endpoint.Endpoint) error {
	switch {
	case ep.Type == endpoint.Unix, addr.Is4() == (ep.Type == endpoint.IPv4):
		return nil
	case addr.Is4():
		return fmt.Errorf("endpoint %q is ipv6, an IPv4 address needs an ipv4 or unix one", ep.Name)
	}
	return fmt.Errorf("endpoint %q is ipv4, an IPv6 address needs an ipv6 or unix one", ep.Name)
}
