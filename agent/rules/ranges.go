package rules

import (
	"fmt"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/policy"
)

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
