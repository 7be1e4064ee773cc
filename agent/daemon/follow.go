package daemon

import (
	"errors"
	"slices"

	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/policy"
)

// followed are the rules of a container that a new grant changes, as texts with their flags.
type followed struct{ withdrawn, restored, changed, restart []string }

// step is a change of a container's endpoints.
type step struct {
	remove string             // the name of an endpoint; empty: none
	add    *endpoint.Endpoint // after that; nil: none
}

// follow puts wanted rules in force as far as a running container can have them. The caller holds
// following.
func (m *managed) follow(want api.Rules) (followed, error) {
	wanted, err := rules.Parse(want)
	if err != nil {
		return followed{}, err
	}
	had, err := rules.Parse(m.rules())
	if err != nil {
		return followed{}, err
	}
	now, err := m.endpoints()
	if err != nil {
		return followed{}, err
	}
	steps, f := plan(&had, &wanted, &now)
	// What fails must not keep rules in force that go.
	var errs []error
	sources, changed := planSources(had.Ingress, wanted.Ingress, m.Sources())
	if f.changed = changed; len(changed) > 0 {
		errs = append(errs, m.SetSources(sources))
	}
	for _, s := range steps {
		if s.remove != "" {
			errs = append(errs, m.DeleteEndpoint(s.remove))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return f, err
	}
	for _, s := range steps {
		if s.add != nil {
			if err := m.AddEndpoint(s.add); err != nil {
				return f, err
			}
		}
	}
	return f, nil
}

// plan decides which endpoints a container has to lose and to get: rules are in force while their
// endpoint exists. had are the rules with which the container was registered, and now its present
// endpoints. Where several rules name an endpoint, to take away one takes away all of them. Rules
// that the container did not have when it was registered need a new container. Rules that differ in
// their sources alone are the same rule here.
func plan(had, wanted *rules.Rules, now *endpoint.Set) (steps []step, f followed) {
	named, all := rulesByEndpoint(had), allRules(wanted)
	for _, ep := range union(had.Endpoints.All(), now.All()) {
		list := named[ep.Name]
		give, _ := wanted.Endpoints.Get(ep.Name)
		if slices.ContainsFunc(list, func(rule string) bool { return !slices.Contains(all, rule) }) {
			give = nil
		}
		has, _ := now.Get(ep.Name)
		switch {
		case has == nil && give != nil:
			steps = append(steps, step{add: give})
			f.restored = append(f.restored, list...)
		case has != nil && give == nil:
			steps = append(steps, step{remove: ep.Name})
			f.withdrawn = append(f.withdrawn, list...)
		case has != nil && has.String() != give.String():
			steps = append(steps, step{ep.Name, give})
		}
	}
	for _, rule := range all {
		if !slices.Contains(allRules(had), rule) {
			f.restart = append(f.restart, rule)
		}
	}
	return steps, f
}

// planSources returns the sources that the rules of a container will have, of which now has the
// present ones, and the wanted rules that change. Rules that are not wanted keep theirs.
func planSources(had, wanted []policy.Ingress, now []policy.From) (sources []policy.From, changed []string) {
	for i, r := range had {
		from := now[i]
		at := slices.IndexFunc(wanted, func(w policy.Ingress) bool { return textOf(w) == textOf(r) })
		if at >= 0 && wanted[at].From.String() != from.String() {
			from = wanted[at].From
			changed = append(changed, "-i "+wanted[at].String())
		}
		sources = append(sources, from)
	}
	return sources, changed
}

// textOf returns a rule as a text with its flag, without its sources.
func textOf(r policy.Ingress) string { return "-i " + r.WithFrom(nil).String() }

// endpoints returns the endpoints that the container has now.
func (m *managed) endpoints() (set endpoint.Set, err error) {
	for _, e := range m.ListEndpoints() {
		ep, err := rules.ParseDefinition(e.Name, e.Definition)
		if err == nil {
			err = set.Add(ep)
		}
		if err != nil {
			return set, err
		}
	}
	return set, nil
}

// union returns endpoints of two lists, the first of each name.
func union(a, b []*endpoint.Endpoint) []*endpoint.Endpoint {
	list := slices.Clone(a)
	for _, ep := range b {
		if !slices.ContainsFunc(list, func(other *endpoint.Endpoint) bool { return other.Name == ep.Name }) {
			list = append(list, ep)
		}
	}
	return list
}

// rulesByEndpoint returns rules as texts with their flags and without sources, by the name of their
// endpoint.
func rulesByEndpoint(r *rules.Rules) map[string][]string {
	texts := map[string][]string{}
	add := func(ep *endpoint.Endpoint, text string) { texts[ep.Name] = append(texts[ep.Name], text) }
	for _, in := range r.Ingress {
		add(in.Endpoint, textOf(in))
	}
	for _, out := range r.Egress {
		add(out.Endpoint, "-e "+out.String())
	}
	for _, n := range r.NameRules {
		add(n.Endpoint, rules.NameRuleFlag+" "+n.String())
	}
	return texts
}

func allRules(r *rules.Rules) (all []string) {
	for _, list := range rulesByEndpoint(r) {
		all = append(all, list...)
	}
	slices.Sort(all)
	return all
}
