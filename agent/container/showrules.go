package container

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
)

// Rules returns the rules that are in force.
func (c *Container) Rules() api.Rules {
	c.changes.Lock()
	set, g := c.endpoints.Load(), c.given.Load()
	c.changes.Unlock()
	r := rules.Rules{Mode: c.spec.Mode, Endpoints: *set, Translation: c.spec.Translation}
	var err error
	if r.Ingress, r.Egress, r.NameRules, err = g.in(set); err != nil {
		r.Ingress, r.Egress, r.NameRules = nil, nil, nil
	}
	return r.Texts()
}

// FormerEndpoints returns endpoints of ingress rules that the container has had, and that may come
// back.
func (c *Container) FormerEndpoints() (texts []string) {
	set := c.endpoints.Load()
	for _, r := range c.given.Load().ingress {
		if _, err := set.Get(r.Endpoint.Name); err != nil && !slices.Contains(texts, r.Endpoint.String()) {
			texts = append(texts, r.Endpoint.String())
		}
	}
	return texts
}

// ReadRules reads rules for SetRules. Mode, translation and name rules that are missing are the container's. It refuses
// others, which only a new container can have, with ErrNew.
func (c *Container) ReadRules(t api.Rules) (rules.Rules, error) {
	has := c.spec.Texts()
	if t.Mode == "" {
		t.Mode = has.Mode
	}
	if t.Translate == nil {
		t.Translate = has.Translate
	}
	if t.NameRules == nil {
		t.NameRules = has.NameRules
	}
	r, err := rules.Parse(t)
	if err != nil {
		return r, fmt.Errorf("%w: %w", rules.ErrRequest, err)
	}
	what := ""
	switch {
	case r.Mode != c.spec.Mode:
		what = "the mode"
	case !reflect.DeepEqual(r.Texts().Translate, has.Translate):
		what = "the translation"
	case !slices.Equal(namesOf(r.NameRules), namesOf(c.spec.NameRules)):
		what = "name rules"
	}
	if what != "" {
		return r, fmt.Errorf("%w: %s cannot change; restart the container, or leave that out", ErrNew, what)
	}
	return r, nil
}

// Kept returns those of some rules that are in force, with their own sources and with endpoints that the
// container has.
func (c *Container) Kept(want *rules.Rules) rules.Rules {
	set, g := c.endpoints.Load(), c.given.Load()
	now := g.inForce(set)
	kept := rules.Rules{Mode: want.Mode, Translation: want.Translation}
	has := func(key, text string, name string) bool {
		ep, err := want.Endpoints.Get(name)
		r, is := now[key]
		return err == nil && is && r.text == text && r.at.String() == ep.String()
	}
	for _, r := range want.Ingress {
		if has(keyOf(r), "-i "+textOf(r), r.Endpoint.Name) {
			kept.Ingress = append(kept.Ingress, r)
		}
	}
	for _, r := range want.Egress {
		if text := "-e " + r.String(); has(text, text, r.Endpoint.Name) {
			kept.Egress = append(kept.Egress, r)
		}
	}
	if slices.Equal(namesOf(want.NameRules), namesOf(g.names)) {
		kept.NameRules = want.NameRules
	}
	for _, ep := range want.Endpoints.All() {
		if has, err := set.Get(ep.Name); err == nil && has.String() == ep.String() {
			_ = kept.Endpoints.Add(ep) // each name is there once
		}
	}
	return kept
}
