package container

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/tsugiki/tsugiki/agent/ports"
	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/policy"
)

// ErrExists is wrapped where the name of a new endpoint is taken.
var ErrExists = errors.New("there is an endpoint of that name")

// ErrUntrapped is wrapped where a new endpoint needs traps for calls that the container's filter
// does not trap.
var ErrUntrapped = errors.New("calls of the container have not been trapped since its start")

// HostError says that the host does not have, or no longer has, an address or a port of an
// endpoint.
type HostError struct{ Err error }

func (e HostError) Error() string { return e.Err.Error() }

func (e HostError) Unwrap() error { return e.Err }

// ListEndpoints returns the endpoints that the container has now, by name.
func (c *Container) ListEndpoints() []api.Endpoint {
	list := []api.Endpoint{}
	set, g := c.endpoints.Load(), c.given.Load()
	for _, ep := range set.All() {
		e := api.Endpoint{Container: c.spec.Name, Name: ep.Name, Definition: rules.DefinitionOf(ep), Rules: []string{}}
		for _, r := range g.has() {
			if r.Endpoint.Name == ep.Name {
				e.Rules = append(e.Rules, "-i "+r.String())
			}
		}
		for _, r := range g.egress {
			if r.Endpoint.Name == ep.Name {
				e.Rules = append(e.Rules, "-e "+r.String())
			}
		}
		for _, r := range g.names {
			if r.Endpoint.Name == ep.Name {
				e.Rules = append(e.Rules, rules.NameRuleFlag+" "+r.String())
			}
		}
		list = append(list, e)
	}
	return list
}

// AddEndpoint gives the container another endpoint. Rules that name the endpoint are in force when
// AddEndpoint returns.
func (c *Container) AddEndpoint(ep *endpoint.Endpoint) error {
	c.changes.Lock()
	defer c.changes.Unlock()
	if c.closing {
		return os.ErrClosed
	}
	if c.endpointNamed(ep.Name) != nil {
		return fmt.Errorf("%w, %s; delete it first", ErrExists, ep.Name)
	}
	n := next{given: c.given.Load().clone(), set: c.endpoints.Load().Clone(), places: map[string]*place{}}
	if err := n.set.Add(ep); err != nil {
		return err
	}
	n.given.move(ep)
	if err := c.check(&n, "endpoint "+ep.Name); err != nil {
		return err
	}
	return c.putInForce(&n)
}

// served returns a function that tells whether the container has bound a port in a place.
func (c *Container) served(p *place) func(protocol int, at netip.AddrPort) bool {
	return func(protocol int, at netip.AddrPort) bool {
		return c.spec.Ports.Has(graft.Port{Netns: p.Cookie(), Protocol: protocol, At: at}) || c.spec.Ports.Unknown() && c.enforced.Served(protocol, at)
	}
}

// announce tells the owner what is about to be in force.
func (c *Container) announce(t *policy.Table, set *endpoint.Set) error {
	if err := c.owner.Reserve(c.reservations(t)); err != nil {
		return err
	}
	next := c.stateWith(t, set)
	if err := c.owner.Save(next); err != nil {
		return errors.Join(err, c.owner.Reserve(c.reservations(c.table)))
	}
	c.state, c.unsaved = next, false
	return nil
}

// stateWith returns the state with the given rules, as a table and with a set of endpoints.
func (c *Container) stateWith(t *policy.Table, set *endpoint.Set) State {
	next := c.state
	next.Endpoints, next.Numbered = lines(set), names(t.Numbered())
	c.given.Load().note(&next, &c.spec)
	return next
}

// DeleteEndpoint removes an endpoint. Rules that name the endpoint have no effect any more. Its
// connections go on.
func (c *Container) DeleteEndpoint(name string) error {
	c.changes.Lock()
	defer c.changes.Unlock()
	if c.closing {
		return os.ErrClosed
	}
	return c.deleteEndpoint(name)
}

// The caller of deleteEndpoint holds c.changes.
func (c *Container) deleteEndpoint(name string) error {
	before := c.endpoints.Load()
	set := before.Clone()
	if err := set.Remove(name); err != nil {
		return err
	}
	table, err := c.nextTable(c.given.Load(), &set)
	if err != nil {
		return err
	}
	if err := c.announce(table, &set); err != nil {
		return err
	}
	c.endpoints.Store(&set)
	// The kernel last: it does not refuse sockets that are led elsewhere by then.
	if err := c.change(table, c.updateEngine, c.updateGates, c.updateKernel); err != nil {
		c.endpoints.Store(before)
		return errors.Join(err, c.announce(c.table, before))
	}
	gone, _ := before.Get(name)
	return errors.Join(c.withdraw([]*endpoint.Endpoint{gone}, c.enforced.Withdraw), c.closeUnused())
}

// nextTable compiles the rules whose endpoints are in the set.
func (c *Container) nextTable(g *given, set *endpoint.Set) (*policy.Table, error) {
	ingress, egress, names, err := g.in(set)
	if err != nil {
		return nil, err
	}
	return c.table.Next(ingress, egress, names...)
}

// change puts a table in force in steps. If one fails, change undoes the steps before it.
func (c *Container) change(t *policy.Table, steps ...func(*policy.Table) error) error {
	for i, step := range steps {
		err := step(t)
		if err == nil {
			continue
		}
		for _, done := range slices.Backward(steps[:i]) {
			err = errors.Join(err, done(c.table))
		}
		return err
	}
	c.table = t
	return nil
}

func (c *Container) updateKernel(t *policy.Table) error {
	if g := c.given.Load(); (c.spec.Granted || g.replaced) && len(t.IngressRules()) < len(g.ingress) {
		c.enforced.LookUpSources()
	}
	return c.enforced.Update(t, c.netnsOf)
}

// updateGates does not fail if a gate does not answer. Until that gate goes on, none of its trapped
// calls is answered, and when it goes on, it finds the new rules. Its shims may still decide by the
// old rules meanwhile, but the kernel programs judge by the new ones.
func (c *Container) updateGates(t *policy.Table) error {
	silent, err := c.gates.setRules(t.Snapshot(c.netnsOf))
	if silent > 0 {
		c.log.Warn("gates do not answer, somebody may have stopped them; they follow the change when they go on", "gates", silent)
	}
	return err
}

func (c *Container) updateEngine(t *policy.Table) error {
	if c.engine != nil { // it has had a program
		c.engine.Update(c.rules(t))
	}
	return nil
}

// closeUnused lets go of the namespaces in which no endpoint is any more. Namespaces in which
// sockets of the container were made may still have some. They stay open and count as the host's
// side until the container ends.
func (c *Container) closeUnused() error {
	inUse := map[string]bool{"": true}
	for _, ep := range c.endpoints.Load().All() {
		inUse[ep.Netns] = true
	}
	var unused []*place
	for name, p := range c.host {
		if inUse[name] {
			continue
		}
		delete(c.host, name)
		if p.closeUnused() {
			unused = append(unused, p)
		} else {
			c.former = append(c.former, p)
		}
	}
	err := c.updateEngine(c.table)
	for _, p := range unused {
		err = errors.Join(err, p.ns.Close())
	}
	return err
}

// reservations returns the ports that the rules of a table reserve. Ranges are not reserved: a
// program takes a free port of the range, and a port that is reserved for another container is not
// free.
func (c *Container) reservations(t *policy.Table) []ports.Reservation {
	var list []ports.Reservation
	for _, r := range t.IngressRules() {
		place := c.host[r.Endpoint.Netns]
		if r.Endpoint.Type == endpoint.Unix || r.Ports.Size() > 1 || place == nil {
			continue
		}
		if port := r.HostPort(r.Ports.First); port != 0 {
			list = append(list, ports.Reservation{Netns: place.Cookie(), Protocol: r.Protocol, At: netip.AddrPortFrom(r.Endpoint.Addr, port)})
		}
	}
	return list
}

func lines(set *endpoint.Set) []string {
	var list []string
	for _, ep := range set.All() {
		list = append(list, ep.String())
	}
	return list
}

func names(eps []*endpoint.Endpoint) []string {
	var list []string
	for _, ep := range eps {
		if ep == nil {
			list = append(list, "")
			continue
		}
		list = append(list, ep.Name)
	}
	return list
}
