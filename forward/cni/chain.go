package cni

import (
	"errors"
	"fmt"
	"net"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

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
	*done = append(*done, func() error { return forget(l.host) })
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
	var own netlink.Link
	err = ns.Do(func() (err error) {
		if own, err = netlink.LinkByName(c.args.IfName); err != nil {
			return err
		}
		if own.Type() != "veth" {
			return failure(types.ErrInvalidNetworkConfig, "%s is a link of type %s; only links of type veth have an end on the host", c.args.IfName, own.Type())
		}
		l.mac = own.Attrs().HardwareAddr
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("examine link %s of the container: %w", c.args.IfName, err)
	}
	if l.host, err = hostEnd(own, ns); err != nil {
		return nil, err
	}
	l.network = uint32(l.host.Attrs().MasterIndex)
	l.routed = l.network == 0
	if c.DirectForward && !l.routed {
		return l, directPort(l.host)
	}
	return l, nil
}

// hostEnd finds the other end of a pod's link. The pod's end has only its index, in a namespace
// that may be the pod's own: the host's link says whether its other end is that of the pod.
func hostEnd(own netlink.Link, pod *netns.NS) (netlink.Link, error) {
	name := own.Attrs().Name
	host, err := netlink.LinkByIndex(own.Attrs().ParentIndex)
	var missing netlink.LinkNotFoundError
	if err != nil && !errors.As(err, &missing) {
		return nil, fmt.Errorf("find the host's end of link %s: %w", name, err)
	}
	if err == nil && host.Type() == "veth" && host.Attrs().ParentIndex == own.Attrs().Index {
		// The kernel gives namespaces their numbers when it tells of a link.
		id, err := netlink.GetNetNsIdByFd(int(pod.File().Fd()))
		if err != nil {
			return nil, fmt.Errorf("find number of the container's namespace: %w", err)
		}
		if id >= 0 && host.Attrs().NetNsID == id {
			return host, nil
		}
	}
	return nil, failure(types.ErrInvalidNetworkConfig, "the other end of link %s is not in this network namespace", name)
}

// directPort refuses a link whose bridge keeps ports apart: direct packets do not ask it.
func directPort(host netlink.Link) error {
	name := host.Attrs().Name
	master, err := netlink.LinkByIndex(host.Attrs().MasterIndex)
	if err != nil {
		return fmt.Errorf("find the bridge of link %s: %w", name, err)
	}
	var port netlink.Protinfo
	var vlans []*nl.BridgeVlanInfo
	if master.Type() == "bridge" {
		ports, err := netns.Dump(func() ([]netlink.Protinfo, error) {
			port, err := netlink.LinkGetProtinfo(host)
			return []netlink.Protinfo{port}, err
		})
		if err != nil {
			return fmt.Errorf("examine the bridge's port %s: %w", name, err)
		}
		port = ports[0]
		if vlans, err = netns.Dump(bridgeVLANs(host)); err != nil {
			return fmt.Errorf("list VLANs of link %s: %w", name, err)
		}
	}
	if why := apart(master, port, vlans); why != "" {
		return failure(codeNetwork, "the link %s is %s %s, which direct packets would not respect; set directForward to false",
			name, why, master.Attrs().Name)
	}
	return nil
}

// apart says what keeps a port from others of its master; nothing if it reaches them all.
func apart(master netlink.Link, port netlink.Protinfo, vlans []*nl.BridgeVlanInfo) string {
	br, ok := master.(*netlink.Bridge)
	if !ok {
		return "no bridge's, but a port of the " + master.Type()
	}
	if port.Isolated {
		return "an isolated port of bridge"
	}
	if br.VlanFiltering == nil || !*br.VlanFiltering {
		return ""
	}
	for _, v := range vlans {
		if v.PortVID() && br.VlanDefaultPVID != nil && v.Vid == *br.VlanDefaultPVID {
			return ""
		}
	}
	return "not in the default VLAN of bridge"
}

// bridgeVLANs lists those of one port.
func bridgeVLANs(port netlink.Link) func() ([]*nl.BridgeVlanInfo, error) {
	return func() ([]*nl.BridgeVlanInfo, error) {
		all, err := netlink.BridgeVlanList()
		return all[int32(port.Attrs().Index)], err
	}
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
	return forget(link)
}

// forget removes the owner's name from a link, which may have gone.
func forget(link netlink.Link) error {
	err := netlink.LinkSetAlias(link, "")
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove owner of link %s: %w", link.Attrs().Name, err)
	}
	return nil
}

// sameMAC compares the text of a result with a link's.
func sameMAC(text string, mac net.HardwareAddr) bool {
	parsed, err := net.ParseMAC(text)
	return err == nil && parsed.String() == mac.String()
}
