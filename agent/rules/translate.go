package rules

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/intercept/filter"
	"github.com/tsugiki/tsugiki/policy"
)

// Translation configures a container on an IPv6-only network whose programs know IPv4 only.
type Translation struct {
	// Resolvers are asked for names, in this order.
	Resolvers []netip.AddrPort
	// FTP are the ports whose connections are FTP's control connections. In those, the addresses of
	// data connections are translated. nil is FTP's own port, 21.
	FTP []uint16
	// SIP are the ports of TCP whose connections are SIP's. The addresses in their messages are
	// translated.
	SIP []uint16
}

// FTPPorts returns the ports of FTP's control connections.
func (t *Translation) FTPPorts() []uint16 {
	if t.FTP == nil {
		return []uint16{21}
	}
	return t.FTP
}

// ParseTranslated is Parse for such a container. An ingress rule for IPv4 may lead to an IPv6
// address, and there may be name rules. Without an egress rule and a name rule, programs reach all of
// IPv6. They leave from the host's address from, if there is no egress rule. If from is invalid, the
// host chooses the address.
func ParseTranslated(t api.Rules, from netip.Addr) (Rules, error) {
	if t.Mode == filter.Preload.String() {
		return Rules{}, errors.New("IPv4 is translated in the modes auto and seccomp")
	}
	switch {
	case len(t.Egress) > 0 && from.IsValid():
		return Rules{}, errors.New("an egress rule names the address from which programs leave; leave --ipv6 out")
	case len(t.Egress) == 0 && len(t.NameRules) == 0:
		if !from.IsValid() {
			from = netip.IPv6Unspecified()
		}
		t.Egress = []string{"::/0=" + from.String()}
	}
	r, err := join(parse(t, true))
	if err == nil {
		err = r.leadNames(from)
	}
	if err == nil {
		err = r.splitRanges()
	}
	return r, err
}

// rangeMax is how many ports a rule for a range may have where IPv4 is translated.
const rangeMax = 64

// splitRanges replaces each ingress rule for a range of ports by one for each port: where the
// container's loopback is on the host, a rule has to promise its port.
func (r *Rules) splitRanges() error {
	var list []policy.Ingress
	for _, in := range r.Ingress {
		size := in.Ports.Size()
		if size == 1 || in.Endpoint.Type == endpoint.Unix {
			list = append(list, in)
			continue
		}
		if size > rangeMax {
			return fmt.Errorf("the rule -i %s has %d ports; where IPv4 is translated, a rule has %d at most", in, size, rangeMax)
		}
		for i := range size {
			one, ep := in, *in.Endpoint
			port := in.Ports.First + uint16(i)
			host := in.HostPort(port)
			one.Ports, ep.Port = endpoint.PortRange{First: port, Last: port}, endpoint.PortRange{First: host, Last: host}
			ep.Name = fmt.Sprintf("%s-%d", ep.Name, port)
			if err := r.Endpoints.Add(&ep); err != nil {
				return fmt.Errorf("one port of the rule -i %s: %w", in, err)
			}
			one.Endpoint = &ep
			list = append(list, one)
		}
	}
	r.Ingress = list
	return nil
}
