package cni

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/tsugiki/tsugiki/forward"
	"github.com/tsugiki/tsugiki/internal/netns"
)

// check returns an error that says what differs from the result of ADD.
func check(args *skel.CmdArgs) error {
	cmd, err := newCommand(args)
	if err != nil {
		return err
	}
	if cmd.prev == nil {
		return failure(types.ErrInvalidNetworkConfig, "prevResult is missing; CHECK takes the result of ADD")
	}
	err = cmd.check()
	var later *types.Error
	if errors.As(err, &later) && later.Code == types.ErrTryAgainLater {
		return err
	}
	if err != nil {
		return failure(codeDrift, "%v; delete the attachment and add it again", err)
	}
	if cmd.chained {
		return nil
	}
	return cmd.ipam(context.Background(), "CHECK", args.ContainerID, args.IfName, args.StdinData)
}

func (c *command) check() error {
	if c.Mode == modeLoopback {
		return c.checkLoopback()
	}
	l, err := c.otherLink()
	if err != nil {
		return err
	}
	name := c.names()
	if o, ok := ownerOf(l.host); !ok || o != name.Owner {
		return fmt.Errorf("the link %s has the alias %q, not %q", l.host.Attrs().Name, l.host.Attrs().Alias, name.Alias())
	}
	if l.host.Attrs().Flags&net.FlagUp == 0 {
		return fmt.Errorf("the link %s is down", l.host.Attrs().Name)
	}
	if !c.chained {
		if err := c.plane.connected(l.host, name); err != nil {
			return err
		}
		if err := c.checkPod(l); err != nil {
			return err
		}
	}
	return c.checkTable(l)
}

// checkPod compares the pod's end with the result of ADD.
func (c *command) checkPod(l *podLink) error {
	ns, err := openPod(c.args.Netns)
	if err != nil {
		return err
	}
	defer ns.Close()
	return ns.Do(func() error {
		own, err := netlink.LinkByName(c.args.IfName)
		if err != nil {
			return fmt.Errorf("find link %s in the container: %w", c.args.IfName, err)
		}
		if own.Attrs().Flags&net.FlagUp == 0 {
			return fmt.Errorf("the link %s of the container is down", c.args.IfName)
		}
		if want := c.prev.Interfaces[l.index].Mac; !sameMAC(want, own.Attrs().HardwareAddr) {
			return fmt.Errorf("the link %s of the container has the MAC address %s, not %s", c.args.IfName, own.Attrs().HardwareAddr, want)
		}
		return checkAddrs(own, c.prev)
	})
}

// checkAddrs looks for the result's addresses and routes in the thread's namespace.
func checkAddrs(own netlink.Link, want *current.Result) error {
	addrs, err := netns.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(own, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list addresses of the container: %w", err)
	}
	for _, ip := range want.IPs {
		if !slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return a.IPNet.String() == ip.Address.String() }) {
			return fmt.Errorf("the container has not the address %s", ip.Address.String())
		}
	}
	routes, err := netns.Dump(func() ([]netlink.Route, error) { return netlink.RouteList(own, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list routes of the container: %w", err)
	}
	for _, r := range want.Routes {
		if !slices.ContainsFunc(routes, func(has netlink.Route) bool { return leadsTo(has, &r.Dst) }) {
			return fmt.Errorf("the container has no route to %s", r.Dst.String())
		}
	}
	return nil
}

// leadsTo tells whether a route is one to a prefix, or a default route of its family.
func leadsTo(r netlink.Route, to *net.IPNet) bool {
	if r.Dst == nil {
		return (r.Family == netlink.FAMILY_V4) == (to.IP.To4() != nil)
	}
	ones, _ := r.Dst.Mask.Size()
	sameFamily := (r.Dst.IP.To4() != nil) == (to.IP.To4() != nil)
	return r.Dst.String() == to.String() || ones == 0 && sameFamily
}

// checkTable compares the table's row with the pod, and looks for the programs.
func (c *command) checkTable(l *podLink) error {
	if !c.programs() {
		return nil
	}
	t, err := forward.OpenExisting()
	if err != nil {
		return err
	}
	defer t.Close()
	has, err := t.Pod(l.host.Attrs().Index)
	if err != nil {
		return fmt.Errorf("link %s: %w", l.host.Attrs().Name, err)
	}
	want, err := c.pod(l, c.prev)
	if err != nil {
		return err
	}
	if has.MAC != want.MAC || !slices.Equal(has.Addrs, want.Addrs) || has.Checked != want.Checked || has.AllPairs != want.AllPairs {
		return fmt.Errorf("the table has %+v, not %+v", has, want)
	}
	return errors.Join(t.Found(has), t.Attached(has))
}
