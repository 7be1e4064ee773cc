package cni

import (
	"errors"
	"fmt"
	"net"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/tsugiki/tsugiki/forward"
	"github.com/tsugiki/tsugiki/internal/netns"
)

// join adds the programs to the link that a plugin before this one has made, and returns that
// plugin's result.
func (c *command) join(done *undo) (*current.Result, error) {
	if c.prev == nil {
		return nil, failure(types.ErrInvalidNetworkConfig, "ipam is missing; name an IPAM plugin, or put this plugin behind one that makes the link")
	}
	if c.mac != nil {
		return nil, failure(types.ErrInvalidNetworkConfig, "in a chain the plugin that makes the link chooses the MAC address; leave out the capability mac here")
	}
	l, err := c.otherLink()
	if err != nil {
		return nil, err
	}
	alias := l.host.Attrs().Alias
	if o, ours := ownerOf(l.host); alias != "" && !ours {
		return nil, failure(codeClash, "the link %s has the alias %q, which another program needs", l.host.Attrs().Name, alias)
	} else if ours {
		return nil, failure(codeClash, "the link %s is that of attachment %s of container %s to network %s; call DEL first", l.host.Attrs().Name, o.Interface, o.Container, o.Network)
	}
	if err := netlink.LinkSetAlias(l.host, c.names().Alias()); err != nil {
		return nil, fmt.Errorf("name owner of link %s: %w", l.host.Attrs().Name, err)
	}
	*done = append(*done, func() error { return netlink.LinkSetAlias(l.host, "") })
	return c.prev, c.enter(l, c.prev, done)
}

// otherLink finds the link of a plugin before this one, by the pod's end.
func (c *command) otherLink() (*podLink, error) {
	l := &podLink{index: -1}
	for i, own := range c.prev.Interfaces {
		if own.Sandbox != "" && own.Name == c.args.IfName {
			l.index = i
		}
	}
	if l.index < 0 {
		return nil, failure(types.ErrInvalidNetworkConfig, "no plugin before this one has made the interface %s", c.args.IfName)
	}
	ns, err := openPod(c.args.Netns)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	var peer int
	err = ns.Do(func() error {
		own, err := netlink.LinkByName(c.args.IfName)
		if err != nil {
			return err
		}
		if own.Type() != "veth" {
			return failure(types.ErrInvalidNetworkConfig, "%s is a link of type %s; only links of type veth have an end on the host", c.args.IfName, own.Type())
		}
		l.mac, peer = own.Attrs().HardwareAddr, own.Attrs().ParentIndex
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("examine link %s of the container: %w", c.args.IfName, err)
	}
	if l.host, err = netlink.LinkByIndex(peer); err != nil {
		return nil, fmt.Errorf("find the host's end of link %s: %w", c.args.IfName, err)
	}
	if l.host.Type() != "veth" {
		return nil, failure(types.ErrInvalidNetworkConfig, "the other end of link %s is not in this network namespace", c.args.IfName)
	}
	l.network = uint32(l.host.Attrs().MasterIndex)
	l.routed = l.network == 0
	return l, nil
}

// part undoes join. The link may have gone, with the pod or by a plugin that was called before.
func (c *command) part() error {
	links, err := netns.Dump(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	for _, link := range links {
		if o, ok := ownerOf(link); ok && o == c.names().Owner {
			return c.partLink(link)
		}
	}
	return withTable((*forward.Table).Sweep)
}

func (c *command) partLink(link netlink.Link) error {
	err := withTable(func(t *forward.Table) error {
		p, err := t.Pod(link.Attrs().Index)
		if errors.Is(err, forward.ErrUnknown) {
			return nil
		}
		if err == nil {
			err = errors.Join(t.Remove(p.Device), t.Detach(p))
		}
		return err
	})
	if err != nil {
		return err
	}
	return netlink.LinkSetAlias(link, "")
}

// sameMAC compares the text of a result with a link's.
func sameMAC(text string, mac net.HardwareAddr) bool {
	parsed, err := net.ParseMAC(text)
	return err == nil && parsed.String() == mac.String()
}
