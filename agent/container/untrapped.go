package container

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/intercept/filter"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/policy"
	"github.com/tsugiki/tsugiki/policy/enforcer"
)

// hasOnlyLoopback tells whether the container's namespace has nothing but a loopback.
func (c *Container) hasOnlyLoopback() bool { return c.spec.LoopbackOnly || c.state.Untrapped }

// shareLoopback makes the container use the loopback of others in its namespace, if that loopback
// is on the host. The container's filter then traps more calls than necessary.
func (c *Container) shareLoopback() error {
	if err := c.checkAlone(); err != nil {
		return err
	}
	if c.state.Untrapped || !enforcer.LoopbackOnHost(c.ownNS.Cookie()) {
		return nil
	}
	c.state.Untrapped = true
	if err := c.needsTraps(c.table, c.endpoints.Load(), nil); err != nil {
		return fmt.Errorf("the loopback of network namespace %s is on the host, as another container has it: %w", c.spec.Netns, err)
	}
	return nil
}

// sourcesFor returns the addresses that the host's routes choose for destinations of a prefix. They
// are no reason to refuse a later change of rules: a socket that fits no rule gets an error of its
// own.
func sourcesFor(to netip.Prefix) ([]netip.Addr, error) {
	host, err := netns.Current()
	if err != nil {
		return nil, err
	}
	list, err := host.SourcesFor(to)
	return list, errors.Join(err, host.Close())
}

// sourcesFor returns the function by which needsTraps asks the host's routes. Where IPv4 is
// translated, the function is nil: the engine gives translated sockets their source.
func (c *Container) sourcesFor() func(netip.Prefix) ([]netip.Addr, error) {
	if c.spec.Translation != nil {
		return nil
	}
	return sourcesFor
}

// needsTraps returns the reason why the container's filter has to trap connect(2), sends and
// listen(2) with a table and the endpoints of a set; nil if it need not.
func (c *Container) needsTraps(t *policy.Table, set *endpoint.Set, sourcesFor func(netip.Prefix) ([]netip.Addr, error)) error {
	return graft.NeedsTraps(t, graft.Facts{
		OwnIsLoopback: c.hasOnlyLoopback(),
		SeesAll:       c.spec.Mode != filter.Preload,
		Endpoints:     set.All(),
		SourcesFor:    sourcesFor,
	})
}
