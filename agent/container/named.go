package container

import (
	"slices"

	"github.com/tsugiki/tsugiki/afgraft"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/intercept/filter"
)

// Programs that are written for AF_GRAFT name endpoints themselves, among the nameable ones. Their
// AF_GRAFT calls are always trapped. To trap the other calls that they need costs all programs of a
// container. These are trapped only where such a program is to be expected: in a container that
// begins with a nameable endpoint, or without any rule.

// FilterOptions returns which calls the engine has to see. Filters do not change, so what they trap
// depends on the rules of the Spec alone.
func (c *Container) FilterOptions() filter.Options {
	return filter.Options{
		Mode:       c.spec.Mode,
		Datagrams:  c.seesDatagrams(),
		AFGraft:    c.programsName(),
		Untrapped:  c.state.Untrapped,
		Accepts:    c.began.HasOwn() && !c.hasOnlyLoopback() || c.servesRelayed(),
		Translated: c.spec.Translation != nil,
	}
}

// seesDatagrams tells whether the engine sees each datagram with an address. It has to, because an
// AF_GRAFT socket that sends before it is bound leaves by the endpoint for that.
func (c *Container) seesDatagrams() bool {
	source, err := c.spec.Endpoints.Get(afgraft.DefaultSource)
	return graft.SeesDatagrams(c.began, c.spec.LoopbackOnly) || err == nil && source.Nameable
}

// programsName tells whether programs that name endpoints are to be expected.
func (c *Container) programsName() bool {
	return len(c.began.Endpoints()) == 0 || slices.ContainsFunc(c.spec.Endpoints.All(), isNameable)
}

func isNameable(ep *endpoint.Endpoint) bool { return ep.Nameable }
