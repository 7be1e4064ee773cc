package graft

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/policy"
)

// Facts are the facts about a container that NeedsTraps needs beside its rules.
type Facts struct {
	// OwnIsLoopback is Config's OwnIsLoopback.
	OwnIsLoopback bool
	// SeesAll says that the front end sees the calls of all programs. If it does not, some programs
	// have their sockets in the container's own namespace, and others have to find them on its
	// loopback.
	SeesAll bool
	// Endpoints are all endpoints of the container, whether a rule names them or not.
	Endpoints []*endpoint.Endpoint
	// SourcesFor returns the addresses that the host's routes choose for destinations of a prefix.
	// It is nil if these addresses do not matter.
	SourcesFor func(netip.Prefix) ([]netip.Addr, error)
}

// NeedsTraps returns the reason why the connect(2), send and listen(2) calls of a container have to
// be trapped. It returns nil if the kernel programs can decide about them alone. In that case:
//
//   - all TCP and UDP sockets of the container are created on the host, and its loopback is
//     there too, so that no socket is ever moved;
//   - the address from which a socket leaves does not depend on its destination (see Source). A
//     socket that is bound to the wildcard before it connects leaves from the address that the
//     host's routes choose, so that address has to be the same.
//
// It looks at nothing but its arguments, and calls SourcesFor.
func NeedsTraps(t *policy.Table, f Facts) error {
	switch {
	case !f.OwnIsLoopback:
		return errors.New("the container's network namespace may have more than a loopback")
	case !f.SeesAll:
		return errors.New("in mode preload some programs have their sockets in the container's network namespace")
	case len(t.Endpoints()) == 0:
		return errors.New("no rule names an endpoint")
	}
	for _, ep := range f.Endpoints {
		if ep.Nameable {
			return fmt.Errorf("programs may name endpoint %s (AF_GRAFT)", ep.Name)
		}
	}
	for _, r := range t.IngressRules() {
		if r.Endpoint.Netns != "" {
			return fmt.Errorf("the rule -i %s leads to network namespace %s", r, r.Endpoint.Netns)
		}
		if r.Endpoint.Type != endpoint.Unix && (r.Ports.Size() > 1 || r.Endpoint.Dynamic() && r.Ports.Contains(0)) {
			// Other containers may get the port while a socket has it and does not listen.
			return fmt.Errorf("the rule -i %s promises no port, so that listen(2) has to be decided", r)
		}
	}
	if err := sourcesNeedTraps(t); err != nil || f.SourcesFor == nil {
		return err
	}
	return routesNeedTraps(t, f.SourcesFor)
}

// sourcesNeedTraps looks at the egress rules.
func sourcesNeedTraps(t *policy.Table) error {
	first := map[endpoint.Type]policy.Egress{}
	for _, r := range egressRules(t) {
		ep := r.Endpoint
		switch {
		case ep.Type == endpoint.Unix:
			return fmt.Errorf("the rule -e %s leads to a unix socket", r)
		case ep.Netns != "":
			return fmt.Errorf("the rule -e %s leads to network namespace %s", r, ep.Netns)
		case staysOnLoopback(r):
			continue
		}
		other, known := first[ep.Type]
		if known && other.Endpoint.Addr != ep.Addr {
			return fmt.Errorf("the rules -e %s and -e %s leave from different addresses, %s and %s",
				other, r, other.Endpoint.Addr, ep.Addr)
		}
		first[ep.Type] = r
	}
	return nil
}

// routesNeedTraps compares the source addresses of the egress rules with those that the host's
// routes choose.
func routesNeedTraps(t *policy.Table, sourcesFor func(netip.Prefix) ([]netip.Addr, error)) error {
	for _, r := range egressRules(t) {
		ep := r.Endpoint
		if ep.Addr.IsUnspecified() || staysOnLoopback(r) {
			continue
		}
		sources, err := sourcesFor(r.Prefix)
		if err != nil {
			return err
		}
		for _, s := range sources {
			if s != ep.Addr {
				return fmt.Errorf("the rule -e %s leaves from %s, and the host's routes choose %s for a socket that is bound before it connects",
					r, ep.Addr, s)
			}
		}
	}
	return nil
}

// Source returns the one source address of a family for a container without traps. It is
// unspecified if the host chooses the address, and invalid if no egress rule is of the family.
func Source(t *policy.Table, ip6 bool) netip.Addr {
	for _, r := range egressRules(t) {
		if r.Endpoint.Type != endpoint.Unix && r.Endpoint.Addr.Is6() == ip6 && !staysOnLoopback(r) {
			return r.Endpoint.Addr
		}
	}
	return netip.Addr{}
}

// staysOnLoopback tells whether a rule leads from a loopback address to loopback addresses. The
// kernel gives such a source address to sockets that connect there, and to no others.
func staysOnLoopback(r policy.Egress) bool {
	return r.Endpoint.Addr.IsLoopback() && r.Prefix.Addr().IsLoopback()
}

// egressRules returns, for each endpoint that an egress rule names, a rule of the widest prefix.
// Rules that stay on the loopback are counted separately. Name rules are as a rule for all of IPv6.
func egressRules(t *policy.Table) []policy.Egress {
	numbered := t.Numbered()
	var list []policy.Egress
	if ep := t.NameEndpoint(); ep != nil {
		list = append(list, policy.Egress{Prefix: netip.PrefixFrom(netip.IPv6Unspecified(), 0), Ports: policy.AllPorts, Endpoint: ep})
	}
	for _, route := range slices.Backward(t.Routes()) {
		for _, to := range route.Ranges {
			r := policy.Egress{Prefix: route.Prefix, Ports: to.Ports, Endpoint: numbered[to.Endpoint]}
			if !slices.ContainsFunc(list, func(l policy.Egress) bool {
				return l.Endpoint == r.Endpoint && staysOnLoopback(l) == staysOnLoopback(r)
			}) {
				list = append(list, r)
			}
		}
	}
	return list
}
