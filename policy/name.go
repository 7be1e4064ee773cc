package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/tsugiki/tsugiki/endpoint"
)

// NameRule lets programs reach hosts by their names. The DNS proxy of the container has to say
// which addresses were answered for names that match (Table.Opened).
type NameRule struct {
	// Pattern is in lower case and has no dot at its end.
	Pattern  string
	Ports    endpoint.PortRange
	Protocol Protocol
	Endpoint *endpoint.Endpoint // of IPv6
}

const (
	// NameRulesMax is the number of name rules that a Table may have.
	NameRulesMax = 256
	// OpenedMax is the number of addresses that name rules can open for a container at a time. Their
	// rows in the kernel have the room of the prefixes that a table with name rules does without.
	OpenedMax = 2 * (PrefixesMax - prefixesBesideNames)

	prefixesBesideNames = PrefixesMax / 2

	nameMax  = 253 // octets of a name without the dot at its end (RFC 1035 section 3.1)
	labelMax = 63
)

// anyDepth stands for one or more labels at the start of a pattern.
const anyDepth = "**"

// ParseNameRule reads PATTERN[:PORT[-PORT]][/tcp|/udp]. A "*" in a label of the pattern stands for any
// number of letters, digits, "-" and "_", so a label "*" is one label. "**." at the start stands for one
// or more labels. A pattern "*" matches each name. These are the patterns of Cilium's matchPattern.
// A dot at the end and the case of letters do not matter. The caller sets the endpoint.
func ParseNameRule(s string) (NameRule, error) {
	r, err := parseNameRule(s)
	if err != nil {
		shown := s
		if len(shown) > nameMax {
			shown = shown[:nameMax] + "..."
		}
		return r, fmt.Errorf("%w --name-rule %q: %w", ErrRule, shown, err)
	}
	return r, nil
}

func parseNameRule(s string) (NameRule, error) {
	r := NameRule{Ports: AllPorts}
	var err error
	what, protocol := CutProtocol(s)
	r.Protocol = protocol
	if _, err := netip.ParseAddr(strings.Trim(what, "[]")); err == nil || strings.Count(what, ":") > 1 {
		return r, errors.New("it is for names; write an address in -e")
	}
	pattern, ports, hasPorts := strings.Cut(what, ":")
	if hasPorts && ports == "" {
		return r, errors.New("the port after \":\" is missing")
	}
	if hasPorts {
		if r.Ports, err = endpoint.ParsePortRange(ports); err != nil {
			return r, err
		}
	}
	r.Pattern, err = parsePattern(pattern)
	return r, err
}

// parsePattern returns a pattern in the form of NameRule.
func parsePattern(s string) (string, error) {
	s = strings.TrimSuffix(s, ".")
	switch {
	case s == "":
		return "", errors.New("the name is missing; write PATTERN[:PORT[-PORT]][/tcp|/udp]")
	case len(s) > nameMax:
		return "", fmt.Errorf("it has %d octets; a name has %d at most", len(s), nameMax)
	}
	for _, r := range s {
		switch {
		case r >= 0x80:
			return "", errors.New("write an international name in ASCII (xn--...)")
		case r != '*' && r != '.' && !inName(byte(r)):
			return "", fmt.Errorf("%q cannot be in it; there are letters, digits, \"-\", \"_\", \".\" and \"*\"", r)
		}
	}
	labels := strings.Split(s, ".")
	for i, l := range labels {
		switch {
		case l == "":
			return "", errors.New("there is nothing between two dots, or before the first")
		case len(l) > labelMax:
			return "", fmt.Errorf("a label has %d octets; %d is the most", len(l), labelMax)
		case strings.Contains(l, anyDepth) && (l != anyDepth || i > 0 || len(labels) == 1):
			return "", errors.New("\"**\" is only possible as \"**.\" at the start; \"*\" alone is each name")
		}
	}
	if last := labels[len(labels)-1]; strings.Trim(last, "0123456789") == "" {
		return "", errors.New("no name ends with a number; write addresses in -e")
	}
	return strings.ToLower(s), nil
}

// inName tells whether an octet is one of those for which "*" stands.
func inName(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_'
}

// String returns the rule as ParseNameRule reads it.
func (r NameRule) String() string {
	if r.Ports == AllPorts {
		return r.Pattern + r.Protocol.String()
	}
	return fmt.Sprintf("%s:%s%s", r.Pattern, r.Ports, r.Protocol)
}

// Matches tells whether the pattern matches a name, as a program has asked for it. Names with octets
// other than letters, digits, "-" and "_" match no pattern: in DNS messages, labels may have any octets,
// dots too, which the name then has as "\.".
func (r NameRule) Matches(name string) bool {
	name = strings.TrimSuffix(name, ".")
	for i := range len(name) {
		if name[i] != '.' && !inName(name[i]) {
			return false
		}
	}
	if len(name) > nameMax {
		return false
	}
	labels, pattern := strings.Split(strings.ToLower(name), "."), strings.Split(r.Pattern, ".")
	for _, l := range labels {
		if l == "" {
			return false
		}
	}
	switch {
	case r.Pattern == "*":
		return true
	case pattern[0] == anyDepth:
		pattern = pattern[1:]
		if len(labels) <= len(pattern) {
			return false
		}
		labels = labels[len(labels)-len(pattern):]
	case len(labels) != len(pattern):
		return false
	}
	for i, l := range labels {
		if !matchLabel(pattern[i], l) {
			return false
		}
	}
	return true
}

// matchLabel tells whether a pattern in which "*" stands for any octets matches all of a label. The parts
// between the stars are looked for from left to right; the first place of each leaves the most to the
// others.
func matchLabel(pattern, label string) bool {
	parts := strings.Split(pattern, "*")
	first, last := parts[0], parts[len(parts)-1]
	if len(parts) == 1 {
		return pattern == label
	}
	if len(label) < len(first)+len(last) || !strings.HasPrefix(label, first) || !strings.HasSuffix(label, last) {
		return false
	}
	label = label[len(first) : len(label)-len(last)]
	for _, part := range parts[1 : len(parts)-1] {
		_, after, found := strings.Cut(label, part)
		if !found {
			return false
		}
		label = after
	}
	return true
}
