package rules

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/policy"
)

// NameRuleFlag is the flag of a name rule on the command line of tsugiki run.
const NameRuleFlag = "--name-rule"

// nameEndpoint is the name of the endpoint by which hosts are reached that name rules open, where no
// egress rule has one of IPv6.
const nameEndpoint = "names"

// errNameRules refuses name rules where nobody translates: only the container's DNS proxy knows which
// names its programs have asked for.
var errNameRules = errors.New("name rules are for containers whose IPv4 is translated")

func parseNameRule(s string) ([]policy.NameRule, error) {
	r, err := policy.ParseNameRule(s)
	return []policy.NameRule{r}, err
}

// leadNames gives the name rules their endpoint: that of the first egress rule for IPv6, since a
// translated container leaves from one address; else a new one with the address from. An invalid from
// leaves the choice to the host.
func (r *Rules) leadNames(from netip.Addr) error {
	if len(r.NameRules) == 0 {
		return nil
	}
	var ep *endpoint.Endpoint
	for _, e := range r.Egress {
		if ep == nil && e.Endpoint.Type == endpoint.IPv6 {
			ep = e.Endpoint
		}
	}
	if known, err := r.Endpoints.Get(nameEndpoint); err == nil && ep == nil && !from.IsValid() && known.Type == endpoint.IPv6 {
		ep = known // the rules were read before
	}
	if ep == nil {
		if !from.IsValid() {
			from = netip.IPv6Unspecified()
		}
		ep = &endpoint.Endpoint{Name: nameEndpoint, Type: endpoint.IPv6, Addr: from}
		if err := r.Endpoints.Add(ep); err != nil {
			return fmt.Errorf("the endpoint of the name rules: %w", err)
		}
	}
	for i := range r.NameRules {
		r.NameRules[i].Endpoint = ep
	}
	return nil
}

// couldBeNamed says which name rules could cover a port of an address that no egress rule covers; empty
// if there are none. The rules alone do not say which addresses were answered.
func (r *Rules) couldBeNamed(protocol policy.Protocol, port uint16) string {
	var could []string
	for _, n := range r.NameRules {
		if n.Ports.Contains(port) && n.Protocol.Meets(protocol) {
			could = append(could, NameRuleFlag+" "+n.String())
		}
	}
	if len(could) == 0 {
		return ""
	}
	return "no -e rule covers it; if a program has got it in the answer for a name that matches, it is covered by " + strings.Join(could, " or ")
}
