package container

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/policy"
)

// Rules returns the rules that are in force.
func (c *Container) Rules() api.Rules {
	c.changes.Lock()
	set, g := c.endpoints.Load(), c.given.Load()
	c.changes.Unlock()
	r := rules.Rules{Mode: c.spec.Mode, Endpoints: *set, Translation: c.translationWith(g.resolvers)}
	var err error
	if r.Ingress, r.Egress, r.NameRules, err = g.in(set); err != nil {
		r.Ingress, r.Egress, r.NameRules = nil, nil, nil
	}
	return r.Texts()
}

// FormerEndpoints returns endpoints of ingress rules that the container has had, and that may come
// back, in the order in which the rules first came.
func (c *Container) FormerEndpoints() (texts []string) {
	set := c.endpoints.Load()
	for _, r := range c.given.Load().ingress {
		if _, err := set.Get(r.Endpoint.Name); err != nil && !slices.Contains(texts, r.Endpoint.String()) {
			texts = append(texts, r.Endpoint.String())
		}
	}
	return texts
}

// translationWith returns how IPv4 is translated with some resolvers; nil if it is not, or if there are none.
func (c *Container) translationWith(resolvers []netip.AddrPort) *rules.Translation {
	if c.spec.Translation == nil || len(resolvers) == 0 {
		return nil
	}
	t := *c.spec.Translation
	t.Resolvers = resolvers
	return &t
}

// Resolvers returns the resolvers that are asked for names; none if questions are refused, or if IPv4 is not
// translated.
func (c *Container) Resolvers() []netip.AddrPort { return c.given.Load().resolvers }

// ReadRules reads rules for SetRules. Mode, translation, resolvers and name rules that are missing are the
// container's. It refuses others, which only a new container can have, with ErrNew; but other resolvers it may have.
func (c *Container) ReadRules(t api.Rules) (rules.Rules, error) {
	has, resolvers := c.spec.Texts(), c.Resolvers()
	names := t.Translate != nil && len(t.Translate.DNS) > 0
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
	if !slices.Equal(namesOf(r.NameRules), namesOf(c.spec.NameRules)) {
		return r, errChange("name rules")
	}
	err = c.checkKind(&r)
	if err == nil && !names {
		r.Translation = c.translationWith(resolvers)
	}
	return r, err
}

// checkKind refuses rules for another mode or translation; but resolvers may be others. Rules without a translation
// may replace those of a container that has one: programs then reach what these rules say, and no more.
func (c *Container) checkKind(want *rules.Rules) error {
	switch {
	case want.Mode != c.spec.Mode:
		return errChange("the mode")
	case want.Translation != nil && !want.Translation.IsLike(c.spec.Translation):
		return errChange("the translation")
	case slices.ContainsFunc(want.Ingress, c.hidesSources):
		return fmt.Errorf("%w: sources cannot be checked, as the container's IPv4 is translated; restart the container, or leave +from: out", ErrNew)
	}
	return nil
}

func errChange(what string) error {
	return fmt.Errorf("%w: %s cannot change; restart the container, or leave that out", ErrNew, what)
}

// hidesSources tells whether a rule has sources that nobody could compare with those of connections.
func (c *Container) hidesSources(r policy.Ingress) bool {
	return c.spec.Translation != nil && len(r.From) > 0
}

// Kept returns those of some rules that are in force, with their own sources and resolvers and with endpoints that the
// container has. Their mode and translation are the container's.
func (c *Container) Kept(want *rules.Rules) rules.Rules {
	set, g := c.endpoints.Load(), c.given.Load()
	now := g.inForce(set)
	kept := rules.Rules{Mode: c.spec.Mode}
	if want.Translation != nil {
		kept.Translation = c.translationWith(want.Translation.Resolvers)
	}
	has := func(key, text string, name string) bool {
		ep, err := want.Endpoints.Get(name)
		r, is := now[key]
		return err == nil && is && r.text == text && r.at.String() == ep.String()
	}
	for _, r := range want.Ingress {
		if has(keyOf(r), "-i "+textOf(r), r.Endpoint.Name) && !c.hidesSources(r) {
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
