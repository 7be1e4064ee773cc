package rules

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/config"
	"github.com/tsugiki/tsugiki/policy"
)

// The administrator decides who may ask for what. Rules of the configuration and of the API are the
// administrator's own. Annotations come from anyone who may start a container. Each annotation asks
// for something (demand), and an [[allow]] of the configuration (allowance) says whether it is
// given. The decision depends on the configuration and on the registration alone.

// allowance is an [[allow]] in the form in which demands are compared with it.
type allowance struct {
	lists         map[string][]string // as written; a missing key has its default
	unknownOrigin bool
	nameable      bool
	destinations  []netip.Prefix
	addresses     []netip.Prefix
	ports         []endpoint.PortRange
	resolvers     []netip.AddrPort
}

// The keys of an [[allow]], in the order in which they are written.
const (
	keyEngines      = "engines"
	keyNames        = "names"
	keyAnnotations  = "annotations"
	keyUnknown      = "unknown_origin"
	keyDestinations = "destinations"
	keySpecial      = "special"
	keyAddresses    = "addresses"
	keyPorts        = "ports"
	keyTypes        = "types"
	keyNameable     = "nameable"
	keyNetns        = "netns"
	keyPaths        = "paths"
	keyResolvers    = "resolvers"
)

var allowKeys = []string{
	keyEngines, keyNames, keyAnnotations, keyUnknown, keyDestinations, keySpecial, keyAddresses, keyPorts, keyTypes, keyNameable, keyNetns, keyPaths, keyResolvers,
}

// The defaults of keys that are not written: the least that an allowance gives.
var (
	defaultTypes = []string{endpoint.IPv4.String(), endpoint.IPv6.String()}
	defaultPorts = endpoint.PortRange{First: 1024, Last: 65535}
)

// newAllowance reads an entry. Its errors have line numbers.
func newAllowance(a *config.Allow) (*allowance, []config.Error) {
	w := &allowance{lists: map[string][]string{}, unknownOrigin: a.UnknownOrigin, nameable: a.Nameable}
	for key, list := range map[string][]config.Text{
		keyEngines: a.Engines, keyNames: a.Names, keyAnnotations: a.Annotations, keyDestinations: a.Destinations, keySpecial: a.Special,
		keyAddresses: a.Addresses, keyPorts: a.Ports, keyTypes: a.Types, keyNetns: a.Netns, keyPaths: a.Paths,
		keyResolvers: a.Resolvers,
	} {
		if list != nil {
			w.lists[key] = append([]string{}, Plain(list)...)
		}
	}
	errs := readAll(keyDestinations, a.Destinations, readDestination, &w.destinations)
	errs = append(errs, readAll(keyAddresses, a.Addresses, readAddresses, &w.addresses)...)
	errs = append(errs, readAll(keyPorts, a.Ports, endpoint.ParsePortRange, &w.ports)...)
	errs = append(errs, readAll(keyResolvers, a.Resolvers, ParseResolver, &w.resolvers)...)
	if a.Ports == nil {
		w.ports = []endpoint.PortRange{defaultPorts}
	}
	return w, errs
}

func readAll[T any](key string, texts []config.Text, read func(string) (T, error), into *[]T) (errs []config.Error) {
	for _, t := range texts {
		v, err := read(t.Text)
		if err != nil {
			errs = append(errs, config.Error{Line: t.Line, Err: fmt.Errorf("allow.%s: %w", key, err)})
			continue
		}
		*into = append(*into, v)
	}
	return errs
}

func readDestination(s string) (netip.Prefix, error) {
	p, err := policy.ParsePrefix(s)
	if kind := kindOf(p); err == nil && kind != "" {
		err = fmt.Errorf("%s is special; write special = [%q]", s, kind)
	}
	return p, err
}

func readAddresses(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.IsUnspecified() {
		return netip.Prefix{}, fmt.Errorf("%s has no length; write %s/%d for leaving the choice to the host, %s/0 for all addresses", s, s, a.BitLen(), s)
	}
	p, err := policy.ParsePrefix(s)
	if kind := kindOf(p); err == nil && kind != "" && !isChoice(p) {
		err = fmt.Errorf("%s is special; write special = [%q]", s, kind)
	}
	return p, err
}

// isChoice tells whether an address leaves the choice to the host.
func isChoice(p netip.Prefix) bool { return p.IsSingleIP() && p.Addr().IsUnspecified() }

// kinds has the destinations that no wider rule covers (policy), by their names in
// config.SpecialKinds.
var kinds = map[string][]netip.Prefix{
	"unspecified": {netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("::/128")},
	"loopback":    {netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")},
	"link-local":  {netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("fe80::/10")},
	"multicast":   {netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("ff00::/8")},
	"broadcast":   {netip.MustParsePrefix("255.255.255.255/32")},
}

// kindOf returns the kind of a prefix that is special as a whole; otherwise "".
func kindOf(p netip.Prefix) string {
	for kind, prefixes := range kinds {
		if p.IsValid() && within(p, prefixes) {
			return kind
		}
	}
	return ""
}

// within tells whether one of the prefixes contains all of p.
func within(p netip.Prefix, prefixes []netip.Prefix) bool {
	return slices.ContainsFunc(prefixes, func(q netip.Prefix) bool { return q.Bits() <= p.Bits() && q.Contains(p.Addr()) })
}

// has tells whether a list of the entry has a value. Each list has its own way to compare.
func (w *allowance) has(key, value string) bool {
	list, written := w.lists[key]
	switch key {
	case keyTypes:
		if !written {
			list = defaultTypes
		}
	case keyNames, keyNetns:
		return slices.ContainsFunc(list, func(pattern string) bool { return matches(pattern, value) })
	case keyPaths:
		return slices.ContainsFunc(list, func(pattern string) bool {
			return matches(pattern, value) || strings.HasSuffix(pattern, "/") && strings.HasPrefix(value, pattern)
		})
	}
	return slices.Contains(list, value)
}

func matches(pattern, name string) bool {
	ok, _ := path.Match(pattern, name)
	return ok
}

// hasPorts tells whether the entry's ranges together have all ports of a range.
func (w *allowance) hasPorts(r endpoint.PortRange) bool {
	for next := int(r.First); next <= int(r.Last); {
		i := slices.IndexFunc(w.ports, func(p endpoint.PortRange) bool { return p.Contains(uint16(next)) })
		if i < 0 {
			return false
		}
		next = int(w.ports[i].Last) + 1
	}
	return true
}

// errPID refuses an endpoint whose namespace is named by a process id: another process may soon
// have this id.
var errPID = errors.New("an annotation cannot name a network namespace by a process id; name it as ip-netns(8) does, or by its path")

// errUnclean refuses a path that can be read in several ways.
var errUnclean = errors.New("the path has to be absolute, without .., . and // in it")
