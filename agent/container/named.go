package container

import (
	"slices"

	"github.com/tsugiki/tsugiki/afgraft"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/intercept/filter"
)

// Programs that are written for AF_GRAFT name endpoints themselves, of those that are
// nameable. Their own calls are always seen; what else they need costs all programs of
// a container, and is seen where such a program is to be expected: in a container that
// begins with a nameable endpoint, or without any rule.

// FilterOptions are what the engine has to see.
func (c *Container) FilterOptions() filter.Options {
	return filter.Options{
		Mode:       c.spec.Mode,
		Datagrams:  c.seesDatagrams(),
		AFGraft:    c.programsName(),
		Untrapped:  c.state.Untrapped,
		Accepts:    c.table.HasOwn() && !c.hasOnlyLoopback(),
		Translated: c.spec.Translation != nil,
	}
}

// seesDatagrams tells whether each datagram with an address is looked at. An
// AF_GRAFT socket that sends before it is bound leaves by the endpoint for that.
func (c *Container) seesDatagrams() bool {
	source := c.endpointNamed(afgraft.DefaultSource)
	return graft.SeesDatagrams(c.table, c.spec.LoopbackOnly) || source != nil && source.Nameable
}

// programsName tells whether to expect programs that name endpoints.
func (c *Container) programsName() bool {
	return len(c.table.Endpoints()) == 0 || slices.ContainsFunc(c.spec.Endpoints.All(), isNameable)
}

func isNameable(ep *endpoint.Endpoint) bool { return ep.Nameable }
