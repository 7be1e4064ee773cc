package agent

import (
	"slices"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/intercept/filter"
)

// Programs that are written for AF_GRAFT name endpoints themselves. Their own
// calls are always seen; what else they need costs all programs of a container,
// and is seen where such a program is to be expected: an endpoint that no rule
// names is there for programs to name, and so is a container without any rule.

// filterOptions are what the engine has to see.
func (c *Container) filterOptions() filter.Options {
	return filter.Options{
		Mode:      c.spec.Mode,
		Datagrams: c.seesDatagrams(),
		API:       c.programsName(),
	}
}

// seesDatagrams tells whether each datagram with an address is looked at. An
// AF_GRAFT socket that sends before it is bound leaves by the endpoint for that.
func (c *Container) seesDatagrams() bool {
	return graft.SeesDatagrams(c.table, c.loopback) || c.endpointNamed(graft.DefaultSource) != nil
}

// programsName tells whether to expect programs that name endpoints.
func (c *Container) programsName() bool {
	ruled := c.table.Endpoints()
	return len(ruled) == 0 || slices.ContainsFunc(c.spec.Endpoints.All(), func(ep *endpoint.Endpoint) bool {
		return !slices.Contains(ruled, ep)
	})
}
