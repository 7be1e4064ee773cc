package container

import (
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/intercept/filter"
	"github.com/tsugiki/tsugiki/internal/kernel"
	"github.com/tsugiki/tsugiki/policy"
)

// needsTraps returns the reason why the container's filter has to trap connect(2), sends and
// listen(2) with a table and the endpoints of a set; nil if it need not.
func (c *Container) needsTraps(t *policy.Table, set *endpoint.Set) error {
	return graft.NeedsTraps(t, graft.Facts{
		OwnIsLoopback: c.spec.LoopbackOnly,
		SeesAll:       c.spec.Mode != filter.Preload,
		Endpoints:     set.All(),
		Kernel:        kernel.HostLoopback(),
	})
}
