package container

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/policy"
)

// # Other rules for a running container
//
// The owner saves what is about to be in force (announce), and then kernel, engine and gates change. The
// kernel replaces one table by the other (policy/enforcer/update.go): each destination and each
// source has the verdict of the one or of the other. A process that is killed before the owner has saved
// leaves the former rules. After that, the next process completes the change before it answers a call.
//
// Filters and gates never change. check refuses rules that need what they do not do.

// InForceError says that a container has the rules that were wanted, and what else of the change could not be done. The
// next change does it.
type InForceError struct{ Err error }

func (e InForceError) Error() string { return "the rules are in force, but: " + e.Err.Error() }

func (e InForceError) Unwrap() error { return e.Err }

// ErrUnsaved is wrapped by an InForceError if the owner could not save the rules: the next process would have those
// before.
var ErrUnsaved = errors.New("rules have been taken away, and this could not be written down")

// ErrNew is wrapped where only a new container can have a rule, apart from ErrUntrapped.
var ErrNew = errors.New("rules of a running container")

// Changed are the rules that SetRules has changed, as texts with their flags. Those of ingress rules
// are without sources, but for Sources.
type Changed struct {
	Withdrawn []string // are no longer in force
	Restored  []string // are in force again
	Added     []string // are in force, and never were before
	// Moved are in force at other addresses or ports, or at the container's own address too, or not any
	// more. Servers have to bind and listen again.
	Moved   []string
	Sources []string // have other sources, and are in force
}

// next is what a container is about to have.
type next struct {
	given  *given
	set    endpoint.Set
	table  *policy.Table     // set by check
	places map[string]*place // by Endpoint.Netns: those that endpoints add, or come back to
	// takesAway says that no rule comes, and none moves.
	takesAway bool
}

// SetRules replaces the endpoints, and the ingress and egress rules of the container. All of them are in
// force when SetRules returns, and others are not. Connections go on. A server whose rule has
// gone or whose endpoint has moved takes no new connection, and no datagram, but from the container
// itself. Name rules can be withdrawn, and come back, together. Other resolvers are asked from the next question for a
// name on; without a translation, questions are refused.
//
// If the container cannot have the rules, nothing has changed: the error wraps ErrUntrapped or ErrNew if a
// new container could have them, and policy.ErrRule if none could. It is a HostError if the host has
// not what they need. Only an InForceError comes with the change. It is ErrUnsaved for a container with grants: a disk
// that is full keeps no rule in force that is not granted any more.
func (c *Container) SetRules(want *rules.Rules) (Changed, error) {
	c.changes.Lock()
	defer c.changes.Unlock()
	if c.closing {
		return Changed{}, os.ErrClosed
	}
	n, err := c.wanted(want)
	if err != nil {
		return Changed{}, err
	}
	changed := c.compare(n)
	if !c.unsaved && len(c.unwithdrawn) == 0 && slices.Equal(c.endpoints.Load().All(), n.set.All()) && c.given.Load().equals(n.given) {
		return changed, nil
	}
	n.takesAway = len(changed.Restored)+len(changed.Added)+len(changed.Moved) == 0
	var done InForceError
	if err = c.putInForce(n); err != nil && !errors.As(err, &done) {
		return Changed{}, err
	}
	if c.ownNS != nil {
		c.addressLoopback()
	}
	return changed, err
}

// CheckRules returns the error for which SetRules would change nothing.
func (c *Container) CheckRules(want *rules.Rules) error {
	c.changes.Lock()
	defer c.changes.Unlock()
	if c.closing {
		return os.ErrClosed
	}
	n, err := c.wanted(want)
	if err != nil {
		return err
	}
	return n.discard(c)
}

// wanted returns what the container will have with other rules. Endpoints that stay as they are stay
// the same ones.
func (c *Container) wanted(want *rules.Rules) (*next, error) {
	if err := c.checkKind(want); err != nil {
		return nil, err
	}
	before := c.endpoints.Load()
	n := &next{given: c.given.Load().clone(), places: map[string]*place{}}
	for _, ep := range want.Endpoints.All() {
		if has, err := before.Get(ep.Name); err == nil && has.String() == ep.String() {
			ep = has
		}
		if err := n.set.Add(ep); err != nil {
			return nil, err
		}
	}
	n.given.replaced = true
	for i := range n.given.gone {
		n.given.drop(i)
	}
	for _, r := range want.Ingress {
		ep, err := n.set.Get(r.Endpoint.Name)
		if err != nil {
			return nil, err
		}
		r.Endpoint = ep
		n.given.take(r)
	}
	n.given.resolvers = nil
	if want.Translation != nil {
		n.given.resolvers = slices.Clone(want.Translation.Resolvers)
	}
	n.given.egress = slices.Clone(want.Egress)
	n.given.names = nil
	if slices.Equal(namesOf(want.NameRules), namesOf(c.spec.NameRules)) {
		n.given.names = c.spec.NameRules
	}
	return n, c.check(n, "these rules")
}

func namesOf(list []policy.NameRule) (texts []string) {
	for _, r := range list {
		texts = append(texts, r.String())
	}
	slices.Sort(texts)
	return texts
}

// check compiles the rules of next, opens the namespaces of its new endpoints, and returns what is in
// the way. what says for what the container had to be restarted.
func (c *Container) check(n *next, what string) (err error) {
	most := addedMax
	if c.spec.Granted {
		most = addedMaxGranted
	}
	if len(n.given.ingress)-len(c.spec.Ingress) > most {
		return fmt.Errorf("%w: it has got %d ingress rules since its start; restart the container to have %s", ErrNew, most, what)
	}
	if n.table, err = c.nextTable(n.given, &n.set); err != nil {
		return err
	}
	if reason := c.fits(n.table, &n.set); reason != nil {
		return fmt.Errorf("%w: %w; restart the container to have %s", ErrUntrapped, reason, what)
	}
	before := c.endpoints.Load().All()
	for _, ep := range n.set.All() {
		if slices.Contains(before, ep) {
			continue
		}
		if err := n.open(c, ep); err != nil {
			return errors.Join(HostError{err}, n.discard(c))
		}
	}
	return nil
}

// open opens the place of a new endpoint, and checks whether the host has what the endpoint needs.
func (n *next) open(c *Container, ep *endpoint.Endpoint) error {
	p := n.places[ep.Netns]
	if p == nil {
		var err error
		if p, err = c.openPlace(ep); err != nil {
			return err
		}
		if p != c.host[ep.Netns] {
			n.places[ep.Netns] = p
		}
	}
	return errors.Join(checkAddress(ep, p.ns), checkPorts(n.table, ep, p.ns, c.served(p)))
}

// discard closes the places that only next has.
func (n *next) discard(c *Container) (err error) {
	for _, p := range n.places {
		if !slices.Contains(c.former, p) {
			err = errors.Join(err, p.ns.Close())
		}
	}
	return err
}

// fits returns the reason why the container's filters and gates do not do for a table and the endpoints
// of a set; nil if they do.
func (c *Container) fits(t *policy.Table, set *endpoint.Set) error {
	if c.state.Untrapped {
		if err := c.needsTraps(t, set, nil); err != nil {
			return err
		}
	}
	accepts := c.FilterOptions().Accepts
	for _, r := range t.IngressRules() {
		switch {
		case r.Own && !c.hasOnlyLoopback() && !accepts:
			return fmt.Errorf("the rule -i %s needs accept(2) to be trapped", textOf(r))
		case c.relays(r) && !accepts:
			return fmt.Errorf("the rule -i %s is for a port whose connections are relayed, for which accept(2) has to be trapped", textOf(r))
		case c.state.Untrapped && namesPort0(r) && !slices.ContainsFunc(c.spec.Ingress, namesPort0):
			return fmt.Errorf("the rule -i %s is for port 0, of which the gate decides alone", textOf(r))
		}
	}
	if c.state.Untrapped || c.seesDatagrams() {
		return nil
	}
	for _, r := range t.EgressRules() {
		if r.Protocol.Meets(policy.UDP) && !graft.HostFirst(c.began, c.hasOnlyLoopback(), r.Prefix.Addr().Is6()) {
			return fmt.Errorf("the rule -e %s needs each datagram with an address to be trapped; write /tcp if it is for TCP alone", r)
		}
	}
	return nil
}

// moved returns the names of the nameable endpoints of a set that have had another definition, and have another one
// now than in the former set. Whoever has bound one by its name must not have the other one by that, also if this
// process is killed. No program names an endpoint of the former set any more that the set does not have.
func (c *Container) moved(former, set *endpoint.Set) (list []MovedName) {
	for _, ep := range set.All() {
		i := slices.IndexFunc(c.state.Moved, func(m MovedName) bool { return m.Name == ep.Name })
		was, err := former.Get(ep.Name)
		switch {
		case err == nil && was != ep && was.Nameable:
			list = append(list, MovedName{ep.Name, c.enforced.LastNamed()})
		case i >= 0:
			list = append(list, c.state.Moved[i])
		}
	}
	return list
}

// putInForce gives the container the rules that check has checked. After an error the former rules are in force, unless
// it is an InForceError.
func (c *Container) putInForce(n *next) error {
	before, had, moved := c.endpoints.Load(), c.given.Load(), c.state.Moved
	for netns, p := range n.places {
		c.settle(p)
		c.host[netns] = p
		c.former = slices.DeleteFunc(c.former, func(f *place) bool { return f == p })
	}
	back := func() error {
		c.given.Store(had)
		c.endpoints.Store(before)
		c.state.Moved = moved
		return c.closeUnused()
	}
	// Programs name no endpoint meanwhile that goes, nor one that the engine does not know yet.
	both := before.Clone()
	for _, ep := range before.All() {
		if !slices.Contains(n.set.All(), ep) {
			_ = both.Remove(ep.Name) // it is there
		}
	}
	c.given.Store(n.given)
	c.endpoints.Store(&both)
	c.state.Moved = c.moved(before, &n.set)
	unsaved := c.announce(n.table, &n.set)
	if unsaved != nil && (!n.takesAway || !c.spec.Granted) {
		return errors.Join(unsaved, back())
	}
	// The kernel first: sockets that are led to new endpoints then get there.
	admit := func(*policy.Table) error { return c.admitPods() }
	if err := c.change(n.table, admit, c.updateKernel, c.updateEngine, c.updateGates); err != nil {
		return errors.Join(err, back(), c.announce(c.table, before))
	}
	c.endpoints.Store(&n.set)
	c.askResolvers()
	var errs []error
	if unsaved != nil {
		c.state, c.unsaved = c.stateWith(n.table, &n.set), true
		errs = append(errs, fmt.Errorf("%w: %w", ErrUnsaved, unsaved), c.owner.Reserve(c.reservations(n.table)))
	}
	gone := slices.DeleteFunc(before.All(), func(ep *endpoint.Endpoint) bool { return slices.Contains(n.set.All(), ep) })
	if err := errors.Join(append(errs, c.withdraw(gone, c.enforced.Withdraw), c.closeUnused())...); err != nil {
		return InForceError{err}
	}
	return nil
}

// withdraw takes endpoints that have gone from sockets that were bound by their names. What fails is tried again with the
// next change.
func (c *Container) withdraw(gone []*endpoint.Endpoint, from func(*endpoint.Endpoint) error) error {
	var errs []error
	gone = append(c.unwithdrawn, gone...)
	c.unwithdrawn = nil
	for _, ep := range gone {
		if err := from(ep); err != nil {
			errs, c.unwithdrawn = append(errs, err), append(c.unwithdrawn, ep)
		}
	}
	return errors.Join(errs...)
}

// compare tells what next changes.
func (c *Container) compare(n *next) (changed Changed) {
	had, set := c.given.Load(), c.endpoints.Load()
	was, will := had.inForce(set), n.given.inForce(&n.set)
	known := begin(&c.spec.Rules).inForce(&c.spec.Endpoints)
	for _, r := range had.ingress {
		known[keyOf(r)] = ruleInForce{}
	}
	for _, key := range slices.Sorted(maps.Keys(was)) {
		if _, stays := will[key]; !stays {
			changed.Withdrawn = append(changed.Withdrawn, was[key].text)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(will)) {
		before, wasThere := was[key]
		_, wasKnown := known[key]
		switch now := will[key]; {
		case !wasThere && wasKnown:
			changed.Restored = append(changed.Restored, now.text)
		case !wasThere:
			changed.Added = append(changed.Added, now.text)
		case now.at != before.at || now.text != before.text:
			changed.Moved = append(changed.Moved, now.text)
		case now.from != before.from:
			what, to, _ := strings.Cut(now.text, "=")
			changed.Sources = append(changed.Sources, what+now.from+"="+to)
		}
	}
	return changed
}

// ruleInForce is a rule as a text with its flag and without sources, its endpoint, and its sources.
type ruleInForce struct {
	text string
	at   *endpoint.Endpoint
	from string
}

// keyOf returns the text by which a rule is the same one, whatever its sources are and whether servers
// listen at their own address too.
func keyOf(r policy.Ingress) string {
	r.Own = false
	return "-i " + textOf(r)
}

// inForce returns the rules that are in force with the endpoints of a set.
func (g *given) inForce(set *endpoint.Set) map[string]ruleInForce {
	list := map[string]ruleInForce{}
	ingress, egress, names, err := g.in(set)
	if err != nil {
		return list // rules that do not fit their endpoints are not in force
	}
	for _, r := range ingress {
		list[keyOf(r)] = ruleInForce{"-i " + textOf(r), r.Endpoint, r.From.String()}
	}
	for _, r := range egress {
		text := "-e " + r.String()
		list[text] = ruleInForce{text: text, at: r.Endpoint}
	}
	for _, r := range names {
		text := rules.NameRuleFlag + " " + r.String()
		list[text] = ruleInForce{text: text, at: r.Endpoint}
	}
	return list
}
