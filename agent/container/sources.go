package container

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/tsugiki/tsugiki/policy"
)

// # Sources of ingress rules
//
// All else about a rule stays as it was when the container was made, but its sources may change
// while servers listen: the kernel programs look for them by the rule's number. So numbers never
// change, also not when another process takes the container over.

// numberRules numbers the ingress rules of the Spec.
func (c *Container) numberRules() {
	list := slices.Clone(c.spec.Ingress)
	for i := range list {
		list[i].Number = i + 1
	}
	c.ingress.Store(&list)
}

// Sources returns the present sources of the ingress rules of the Spec, in their order.
func (c *Container) Sources() (list []policy.From) {
	for _, r := range *c.ingress.Load() {
		list = append(list, r.From)
	}
	return list
}

// withSources returns the ingress rules with other sources.
func (c *Container) withSources(list []policy.From) (rules []policy.Ingress, err error) {
	all := *c.ingress.Load()
	if len(list) != len(all) {
		return nil, fmt.Errorf("sources of %d ingress rules, and there are %d", len(list), len(all))
	}
	for i, r := range all {
		r.From = list[i]
		if r, err = r.With(r.Endpoint); err != nil {
			return nil, err
		}
		rules = append(rules, r)
	}
	return rules, nil
}

// SetSources replaces the sources of the ingress rules of the Spec, in their order. Connections go
// on.
func (c *Container) SetSources(list []policy.From) error {
	c.changes.Lock()
	defer c.changes.Unlock()
	if c.closing {
		return os.ErrClosed
	}
	rules, err := c.withSources(list)
	if err != nil {
		return err
	}
	set := c.endpoints.Load()
	ingress, egress, err := c.rulesFor(rules, set)
	if err != nil {
		return err
	}
	table, err := c.table.Next(ingress, egress, c.nameRulesFor(set)...)
	if err != nil {
		return err
	}
	if err := c.admitPods(); err != nil {
		return err
	}
	before := c.state.From
	c.state.From = textsOf(list)
	err = c.announce(table, set)
	if err == nil {
		err = c.change(table, c.updateKernel, c.updateEngine)
	}
	if err != nil {
		c.state.From = before
		return errors.Join(err, c.announce(c.table, set))
	}
	c.ingress.Store(&rules)
	return nil
}

func textsOf(list []policy.From) (texts []string) {
	for _, f := range list {
		texts = append(texts, f.String())
	}
	return texts
}

// restoreSources puts the sources of the State into the rules.
func (c *Container) restoreSources() error {
	if len(c.state.From) == 0 {
		return nil
	}
	var list []policy.From
	for _, text := range c.state.From {
		f, err := policy.ParseFrom(text)
		if err != nil {
			return err
		}
		list = append(list, f)
	}
	rules, err := c.withSources(list)
	if err == nil {
		c.ingress.Store(&rules)
	}
	return err
}

// NamesPod tells whether a rule's sources name a pod.
func (c *Container) NamesPod(uid string) bool {
	return slices.ContainsFunc(c.Sources(), func(f policy.From) bool { return slices.Contains(f.Pods(), uid) })
}

// Network returns the cookie of the network namespace of the container's programs; 0 before it is
// known.
func (c *Container) Network() uint64 { return c.network.Load() }

// AdmitPods lets in the pods that sources name, as the owner knows them by now.
func (c *Container) AdmitPods() error {
	c.changes.Lock()
	defer c.changes.Unlock()
	if c.closing || c.enforced == nil {
		return nil
	}
	return c.admitPods()
}

// The caller of admitPods holds c.changes, or nobody else can have c yet.
func (c *Container) admitPods() error { return c.enforced.AdmitPods(c.owner.PodNetwork) }
