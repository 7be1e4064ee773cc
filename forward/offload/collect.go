package offload

import (
	"context"
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/tsugiki/tsugiki/forward"
	"github.com/tsugiki/tsugiki/forward/offload/ovsdb"
	"github.com/tsugiki/tsugiki/forward/offload/ports"
	"github.com/tsugiki/tsugiki/internal/netns"
)

// collect removes ports whose pods have no link on the host. The table was read before the links
// are: the plugin makes links first, and the port last.
func (c *Controller) collect(ctx context.Context, db *ovsdb.Client, t *ports.Table) error {
	links, err := netns.Dump(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	live := map[forward.Owner]bool{}
	for _, l := range links {
		if o, ok := forward.OwnerOf(l.Attrs().Alias); ok {
			live[o] = true
		}
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	gone := 0
	err = t.Remove(ctx, db, func(p *ports.Port) bool {
		if live[p.Owner] {
			return false
		}
		gone++
		c.log.Info("removed the port of a pod that is gone", "port", p.Name, "container", p.Container)
		return true
	})
	if err == nil {
		c.stats.collected(gone)
	}
	return err
}
