package rules

import (
	"errors"
	"net/netip"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/intercept/filter"
)

// Translation configures a container on an IPv6-only network whose programs know IPv4 only.
type Translation struct {
	// Resolvers are asked for names, in this order.
	Resolvers []netip.AddrPort
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
	return r, err
}
