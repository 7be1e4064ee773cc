package netns

import (
	"context"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Framed returns the numbers of the links by which the namespace's packets come and go, and whose
// packets begin with Ethernet's header, as those of the loopback do.
func (ns *NS) Framed() (list []int, err error) {
	err = ns.Do(func() error {
		links, err := Dump(netlink.LinkList)
		list = framed(links)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	return list, nil
}

// framed leaves out the ports of bridges, bonds and the like: what arrives by a port comes by its
// master. A VRF is the only master whose links keep their packets.
func framed(links []netlink.Link) (list []int) {
	port := map[int]bool{0: false} // by the number of the master; 0: none
	for _, l := range links {
		port[l.Attrs().Index] = l.Type() != "vrf"
	}
	for _, l := range links {
		a := l.Attrs()
		if (a.EncapType == "ether" || a.Flags&net.FlagLoopback != 0) && !port[a.MasterIndex] {
			list = append(list, a.Index)
		}
	}
	return list
}

// Change is news about the links, the routes or the routers of a namespace.
type Change struct {
	Gone int // the number of a link that may be gone; 0: none
}

// changesWaiting is the number of news of a kind that can wait to be read.
const changesWaiting = 64

// isLost tells whether a neighbour that has been a router does not answer any more. Then the kernel prefers
// another router, without a change of its routes.
func isLost(n netlink.NeighUpdate) bool {
	return n.Type == unix.RTM_NEWNEIGH && n.Flags&netlink.NTF_ROUTER != 0 && n.State&netlink.NUD_FAILED != 0
}

// Changes tells of changes of the namespace's links and routes, and of routers that do not answer any more,
// from now on. The channel is closed when ctx ends, or when news were lost.
func (ns *NS) Changes(ctx context.Context) (<-chan Change, error) {
	ctx, end := context.WithCancel(ctx)
	links, routes := make(chan netlink.LinkUpdate, changesWaiting), make(chan netlink.RouteUpdate, changesWaiting)
	neighbours := make(chan netlink.NeighUpdate, changesWaiting)
	err := ns.Do(func() error {
		if err := netlink.LinkSubscribe(links, ctx.Done()); err != nil {
			return err
		}
		if err := netlink.RouteSubscribe(routes, ctx.Done()); err != nil {
			return err
		}
		return netlink.NeighSubscribe(neighbours, ctx.Done())
	})
	if err != nil {
		end()
		return nil, fmt.Errorf("watch links, routes and routers: %w", err)
	}
	news := make(chan Change)
	go func() {
		defer end()
		defer close(news)
		for {
			var c Change
			open := false
			select {
			case <-ctx.Done():
			case n, more := <-neighbours:
				if open = more; open && !isLost(n) {
					continue
				}
			case _, open = <-routes:
			case l, more := <-links:
				if open = more; open && l.Header.Type == unix.RTM_DELLINK {
					c.Gone = int(l.Index)
				}
			}
			if !open {
				return
			}
			select {
			case news <- c:
			case <-ctx.Done():
				return
			}
		}
	}()
	return news, nil
}
