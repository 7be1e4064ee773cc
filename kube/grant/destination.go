package grant

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// Range is a range of ports, from 1 to 65535. First is not more than Last.
type Range struct{ First, Last uint16 }

var allPorts = Range{1, 65535}

// ParseRange reads PORT or FIRST-LAST.
func ParseRange(s string) (Range, error) {
	first, last, several := strings.Cut(s, "-")
	if !several {
		last = first
	}
	a, errA := strconv.ParseUint(first, 10, 16)
	b, errB := strconv.ParseUint(last, 10, 16)
	if errA != nil || errB != nil || a == 0 || a > b {
		return Range{}, fmt.Errorf("%q is neither a port (1-65535) nor a range FIRST-LAST", s)
	}
	return Range{uint16(a), uint16(b)}, nil
}

// String writes a range as ParseRange reads it.
func (r Range) String() string {
	if r.First == r.Last {
		return strconv.Itoa(int(r.First))
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// Contains tells whether a port is in the range.
func (r Range) Contains(port uint16) bool { return r.First <= port && port <= r.Last }

// special are the prefixes that a wider destination does not cover, as they lead to what only the
// node's own processes reach. They are those of the agent's package policy.
var special = prefixes(
	"0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "255.255.255.255/32", "::/128", "::1/128", "fe80::/10", "ff00::/8",
)

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, s := range texts {
		list = append(list, netip.MustParsePrefix(s))
	}
	return list
}

func parsePrefix(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil || p.Addr().Is4In6() || p != p.Masked() {
		return p, fmt.Errorf("%q is no prefix as 10.0.0.0/8", s)
	}
	return p, nil
}

func contains(wide, narrow netip.Prefix) bool {
	return wide.Bits() <= narrow.Bits() && wide.Contains(narrow.Addr())
}

// covers tells whether a destination reaches all of a prefix: it contains the prefix, and is not
// wider than a special prefix that contains it.
func covers(wide, narrow netip.Prefix) bool {
	return contains(wide, narrow) && !slices.ContainsFunc(special, func(s netip.Prefix) bool {
		return contains(s, narrow) && !contains(s, wide)
	})
}

// destination reads a prefix of a rule, and refuses one that the endpoint's destinations do not
// cover with all ports of the rule. For a unix endpoint, addresses only stand for the socket.
func destination(text string, ports Range, e *v1alpha1.GraftEndpoint) (netip.Prefix, error) {
	to, err := parsePrefix(text)
	if err != nil {
		return to, err
	}
	if e.Spec.Type == v1alpha1.Unix {
		return to, nil
	}
	for _, d := range e.Spec.Destinations {
		within, err := parsePrefix(d.CIDR)
		if err != nil {
			return to, fmt.Errorf("a destination of GraftEndpoint %s: %w", e.Name, err)
		}
		all := allPorts
		if d.Ports != "" {
			if all, err = ParseRange(d.Ports); err != nil {
				return to, fmt.Errorf("a destination of GraftEndpoint %s: %w", e.Name, err)
			}
		}
		if covers(within, to) && all.First <= ports.First && ports.Last <= all.Last {
			return to, nil
		}
	}
	return to, fmt.Errorf("%s, ports %s, is no destination of GraftEndpoint %s", to, ports, e.Name)
}
