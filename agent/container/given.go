package container

import (
	"net/netip"
	"slices"

	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/policy"
)

// # Numbers of ingress rules
//
// The kernel programs know an ingress rule by its number, which each server has that was bound by the
// rule: so its sources may change while the server listens, and nobody is let in if the rule has gone. A
// number stands for one rule and one definition of its endpoint, for good, also when another process
// takes the container over. A rule whose endpoint moves gets another number, and servers at the former
// address take nobody. A rule that comes back, to the same place, has its number again, and so has
// servers that still listen.

// The numbers of ingress rules that a container may get while it runs, by requests and by grants. Who writes
// requests may stop the container; of grants, the owner of a namespace decides. Each is in all later records.
const (
	addedMax        = 1024
	addedMaxGranted = 256
)

// given are the rules of a container, in force or not: a rule is in force while its endpoint exists.
// They never change, but are replaced as a whole.
type given struct {
	// ingress has the rules that the container has, and those that it has had: each at its number,
	// less 1, with its present sources, and its endpoint.
	ingress []policy.Ingress
	gone    []bool // of them, those that it does not have any more
	egress  []policy.Egress
	names   []policy.NameRule
	// resolvers are asked for names where IPv4 is translated. If there are none, questions are refused.
	resolvers []netip.AddrPort
	// replaced says that rules have been replaced since the container was registered.
	replaced bool
}

// begin numbers the rules of a Spec.
func begin(r *rules.Rules) *given {
	g := &given{egress: r.Egress, names: r.NameRules}
	if r.Translation != nil {
		g.resolvers = r.Translation.Resolvers
	}
	for _, in := range r.Ingress {
		g.add(in)
	}
	return g
}

// add adds an ingress rule, with the next number.
func (g *given) add(r policy.Ingress) {
	r.Number = len(g.ingress) + 1
	g.ingress, g.gone = append(g.ingress, r), append(g.gone, false)
}

// drop makes the container not have the rule with a number, less 1. Its sources, of which there may be
// hundreds, come back with the rule.
func (g *given) drop(i int) { g.gone[i], g.ingress[i].From = true, nil }

func (g *given) clone() *given {
	c := *g
	c.ingress, c.gone = slices.Clone(g.ingress), slices.Clone(g.gone)
	return &c
}

// take makes the container have an ingress rule. The rule gets the number that it has had, or the
// next one.
func (g *given) take(r policy.Ingress) {
	i := slices.IndexFunc(g.ingress, func(has policy.Ingress) bool { return isSame(has, r) })
	if i < 0 {
		g.add(r)
		return
	}
	r.Number = i + 1
	g.ingress[i], g.gone[i] = r, false
}

// isSame tells whether two rules have one number. Their sources may differ, and whether servers listen
// at their own address too.
func isSame(a, b policy.Ingress) bool {
	return a.Addr == b.Addr && a.Ports == b.Ports && a.Protocol == b.Protocol && a.Endpoint.String() == b.Endpoint.String()
}

// textOf returns a rule as a text without its sources, of which there may be hundreds.
func textOf(r policy.Ingress) string { return r.WithFrom(nil).String() }

// equals tells whether two given are the same rules with the same numbers and endpoints, and the same resolvers.
func (g *given) equals(o *given) bool {
	return slices.Equal(g.gone, o.gone) &&
		slices.EqualFunc(g.ingress, o.ingress, func(a, b policy.Ingress) bool {
			return a.String() == b.String() && a.Endpoint.String() == b.Endpoint.String()
		}) &&
		slices.EqualFunc(g.egress, o.egress, func(a, b policy.Egress) bool {
			return a.String() == b.String() && a.Endpoint.String() == b.Endpoint.String()
		}) &&
		slices.Equal(namesOf(g.names), namesOf(o.names)) && slices.Equal(g.resolvers, o.resolvers)
}

// has returns the ingress rules that the container has.
func (g *given) has() (list []policy.Ingress) {
	for i, r := range g.ingress {
		if !g.gone[i] {
			list = append(list, r)
		}
	}
	return list
}

// move makes the rules that name an endpoint those of another definition of it.
func (g *given) move(ep *endpoint.Endpoint) {
	for i, r := range g.ingress {
		if g.gone[i] || r.Endpoint.Name != ep.Name || r.Endpoint.String() == ep.String() {
			continue
		}
		g.drop(i)
		r.Endpoint = ep
		g.take(r)
	}
}

// place makes rules that the container has be those of the endpoints of a set. Earlier versions have
// left a rule its number when its endpoint moved.
func (g *given) place(set *endpoint.Set) {
	for i, r := range g.ingress {
		if ep, err := set.Get(r.Endpoint.Name); err == nil && !g.gone[i] {
			g.ingress[i].Endpoint = ep
		}
	}
}

// in returns the rules that are in force with the endpoints of a set.
func (g *given) in(set *endpoint.Set) (ingress []policy.Ingress, egress []policy.Egress, names []policy.NameRule, err error) {
	for _, r := range g.has() {
		ep, err := set.Get(r.Endpoint.Name)
		if err != nil {
			continue
		}
		if r, err = r.With(ep); err != nil {
			return nil, nil, nil, err
		}
		ingress = append(ingress, r)
	}
	for _, r := range g.egress {
		ep, err := set.Get(r.Endpoint.Name)
		if err != nil {
			continue
		}
		if r, err = r.With(ep); err != nil {
			return nil, nil, nil, err
		}
		egress = append(egress, r)
	}
	for _, r := range g.names {
		if ep, err := set.Get(r.Endpoint.Name); err == nil && ep.Type == endpoint.IPv6 {
			r.Endpoint = ep
			names = append(names, r)
		}
	}
	return ingress, egress, names, nil
}
