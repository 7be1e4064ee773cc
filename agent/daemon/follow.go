package daemon

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/tsugiki/tsugiki/agent/container"
	"github.com/tsugiki/tsugiki/agent/httpapi"
	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/policy"
)

// followed is what a new grant changes of a container. Rules are texts with their flags.
type followed struct {
	container.Changed
	restart []string           // need a new container
	because string             // the reason for the first of them
	failed  []api.GrantFailure // what could not be put in force
	stays   error              // why rules may be in force that are not granted any more; nil: none is
}

// follow puts wanted rules in force: all of them in one step, if the container can have them. If not,
// rules go that are not wanted, and those come then that the container can have. The caller holds
// following.
func (m *managed) follow(want api.Rules) followed { return m.followBy(want, m.SetRules) }

// followBy is follow with a function that sets rules.
func (m *managed) followBy(want api.Rules, set func(*rules.Rules) (container.Changed, error)) (f followed) {
	wanted := m.wanted(want, &f)
	changed, err := set(&wanted)
	if f.inForce(changed, err) {
		return f
	}
	rest := m.Kept(&wanted)
	if changed, err = set(&rest); !f.inForce(changed, err) {
		// The kernel has no room for their sources, say. Rules that are not granted must not stay. So all go, and those
		// that are granted come back.
		rest = rules.Rules{Mode: rest.Mode}
		if changed, err = set(&rest); !f.inForce(changed, err) {
			f.stays = fmt.Errorf("rules that are no longer granted may be in force: %w", err)
			return f
		}
	}
	var list []one
	all := rest
	for _, more := range missing(&wanted, &rest) {
		try := more.with(&all)
		try.Mode, try.Translation = wanted.Mode, wanted.Translation
		switch err := m.CheckRules(try); {
		case err == nil:
			list, all = append(list, more), *try
		case errors.Is(err, container.ErrUntrapped), errors.Is(err, container.ErrNew):
			f.needsNew(more.text, err.Error())
		default:
			f.fails(more.text, err)
		}
	}
	if len(list) == 0 {
		return f
	}
	if changed, err = set(&all); f.inForce(changed, err) {
		return f
	}
	for _, more := range list { // for one of them, another container may have the port
		try := more.with(&rest)
		try.Mode, try.Translation = all.Mode, all.Translation
		if changed, err = set(try); f.inForce(changed, err) {
			rest = *try
		} else {
			f.fails(more.text, err)
		}
	}
	return f
}

// wanted reads the rules of a grant, which the grants' table has checked. Those of a container are in the mode of the
// container if they say none.
func (m *managed) wanted(want api.Rules, f *followed) rules.Rules {
	has, _ := rules.Parse(api.Rules{Mode: m.Mode}) // it was one when the container was registered
	wanted, err := rules.Parse(want)
	if err != nil {
		f.fails("", err)
		return has
	}
	if want.Mode == "" {
		wanted.Mode = has.Mode
	}
	if err := haveResolvers(wanted.Translation); err != nil {
		f.fails(restartTranslate, err)
		wanted.Translation.Resolvers = nil // those in force may be of a grant before
	}
	return wanted
}

// inForce tells whether rules are in force after SetRules, and notes the change. A container that is being removed needs
// no rules.
func (f *followed) inForce(c container.Changed, err error) bool {
	var done container.InForceError
	but := errors.As(err, &done)
	if but {
		f.fails("", err)
	}
	if err == nil || but {
		f.join(c)
	}
	return err == nil || but || errors.Is(err, os.ErrClosed)
}

// fails adds what could not be put in force, and the reason.
func (f *followed) fails(what string, err error) {
	f.failed = append(f.failed, api.GrantFailure{Rule: what, Reason: httpapi.OneLine(err)})
}

// join adds what was changed after that. What went and is back was not changed for others.
func (f *followed) join(c container.Changed) {
	c.Restored = slices.DeleteFunc(slices.Clone(c.Restored), func(text string) bool {
		i := slices.Index(f.Withdrawn, text)
		if i >= 0 {
			f.Withdrawn = slices.Delete(slices.Clone(f.Withdrawn), i, i+1)
		}
		return i >= 0
	})
	f.Withdrawn = append(f.Withdrawn, c.Withdrawn...)
	f.Restored = append(f.Restored, c.Restored...)
	f.Added = append(f.Added, c.Added...)
	f.Moved = append(f.Moved, c.Moved...)
	f.Sources = append(f.Sources, c.Sources...)
}

// needsNew adds what a container needs a new one for, and the reason.
func (f *followed) needsNew(what, because string) {
	if f.restart = append(f.restart, what); f.because == "" {
		f.because = because
	}
}

// one is a rule with its endpoint, or an endpoint alone.
type one struct {
	text     string
	endpoint *endpoint.Endpoint
	ingress  []policy.Ingress
	egress   []policy.Egress
	names    []policy.NameRule // all of them: they come and go together
}

// missing returns the rules that are wanted and that some do not have, and the endpoints.
func missing(wanted, some *rules.Rules) (list []one) {
	has := textsOf(some)
	for _, r := range wanted.Ingress {
		if text := "-i " + r.WithFrom(nil).String(); !slices.Contains(has, text) {
			list = append(list, one{text: text, endpoint: r.Endpoint, ingress: []policy.Ingress{r}})
		}
	}
	for _, r := range wanted.Egress {
		if text := "-e " + r.String(); !slices.Contains(has, text) {
			list = append(list, one{text: text, endpoint: r.Endpoint, egress: []policy.Egress{r}})
		}
	}
	if len(wanted.NameRules) > 0 && len(some.NameRules) == 0 {
		r := wanted.NameRules[0]
		list = append(list, one{text: rules.NameRuleFlag + " " + r.String(), endpoint: r.Endpoint, names: wanted.NameRules})
	}
	for _, ep := range wanted.Endpoints.All() {
		if _, err := some.Endpoints.Get(ep.Name); err != nil && !slices.ContainsFunc(list, func(o one) bool { return o.endpoint == ep }) {
			list = append(list, one{text: "endpoint " + ep.Name, endpoint: ep})
		}
	}
	return list
}

// textsOf returns ingress and egress rules as texts with their flags and without sources.
func textsOf(r *rules.Rules) (texts []string) {
	for _, in := range r.Ingress {
		texts = append(texts, "-i "+in.WithFrom(nil).String())
	}
	for _, out := range r.Egress {
		texts = append(texts, "-e "+out.String())
	}
	return texts
}

// with returns some rules and this one.
func (o *one) with(some *rules.Rules) *rules.Rules {
	all := *some
	all.Endpoints = some.Endpoints.Clone()
	if _, err := all.Endpoints.Get(o.endpoint.Name); err != nil {
		_ = all.Endpoints.Add(o.endpoint) // it is not there
	}
	all.Ingress, all.Egress = slices.Concat(some.Ingress, o.ingress), slices.Concat(some.Egress, o.egress)
	all.NameRules = slices.Concat(some.NameRules, o.names)
	return &all
}

// errFixed says why the rules of a container are not changed by a request for it.
var errFixed = fmt.Errorf("%w cannot change", container.ErrNew)

// ReadRules is Container's, for requests. It refuses rules of containers whose rules somebody else says.
func (m *managed) ReadRules(t api.Rules) (rules.Rules, error) {
	switch {
	case m.isGuest():
		return rules.Rules{}, fmt.Errorf("%w: detach the virtual machine, and attach it with others", errFixed)
	case m.d.grants != nil && m.Pod != nil:
		return rules.Rules{}, fmt.Errorf("%w: the grant of its pod says them", errFixed)
	}
	r, err := m.Container.ReadRules(t)
	if err == nil {
		err = rules.CheckPublished(&api.Registration{LoopbackOnly: m.LoopbackOnly, Published: m.Published, Engine: m.Engine}, &r)
	}
	return r, err
}
