// Package cni is a network plugin that attaches pods to a bridge, to the host's routes or to Open
// vSwitch, and has their packets for other pods of the node go there directly.
//
// It implements the commands of the CNI specification (ADD, DEL, CHECK, GC, STATUS; VERSION is
// the library's). It owns the links of its pods. It has no files: a link's name is computed from
// the attachment, and its alias says whose it is, so that an attachment is found as long as there
// is anything left of it. Addresses are those of an IPAM plugin, which is called for them. With
// no IPAM plugin it is chained: the link is that of the plugin before it. Pods of mode loopback have
// neither a link nor an IPAM plugin.
//
// It needs root, and the kernel that package forward needs.
package cni

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/vishvananda/netlink"

	"github.com/tsugiki/tsugiki/forward"
	"github.com/tsugiki/tsugiki/internal/netns"
)

// Main serves one command of CNI: the environment and standard input have it. It returns the
// exit status. The calling process is in the host's network namespace.
func Main() int {
	funcs := skel.CNIFuncs{Add: add, Del: del, Check: check, GC: collect, Status: status}
	err := skel.PluginMainFuncsWithError(funcs, version.PluginSupports("0.4.0", "1.0.0", "1.1.0"),
		"tsugiki-cni attaches pods to a bridge, the host's routes or Open vSwitch")
	if err == nil {
		return 0
	}
	_ = err.Print() // standard output is where the caller reads it
	return 1
}

// command is one call.
type command struct {
	*config
	args  *skel.CmdArgs
	plane plane
}

func newCommand(args *skel.CmdArgs) (*command, error) {
	c, err := parse(args)
	if err != nil {
		return nil, err
	}
	cmd := &command{config: c, args: args}
	switch {
	case c.Mode == modeLoopback: // no link, and so no plane
	case c.Routed:
		cmd.plane = routes{prev: c.prev}
	case c.Mode == modeOVS:
		cmd.plane = &ovs{database: c.OVSDB, bridge: c.Bridge, limit: switchTime}
	case c.Mode == modeDPU:
		if cmd.plane, err = newDPU(c); err != nil {
			return nil, failure(types.ErrInvalidNetworkConfig, "%v", err)
		}
	default:
		cmd.plane = bridge{name: c.Bridge, gateway: c.IsGateway}
	}
	return cmd, nil
}

// undo has the functions that undo the steps of ADD so far, in the order of the steps.
type undo []func() error

func (u undo) run() error {
	var errs []error
	for i := len(u) - 1; i >= 0; i-- {
		errs = append(errs, u[i]())
	}
	return errors.Join(errs...)
}

func add(args *skel.CmdArgs) error {
	cmd, err := newCommand(args)
	if err != nil {
		return err
	}
	var done undo
	result, err := cmd.add(&done)
	if err != nil {
		if left := done.run(); left != nil {
			err = fmt.Errorf("%w; then, removing what was made: %w; call DEL", err, left)
		}
		return coded(err)
	}
	return types.PrintResult(result, cmd.CNIVersion)
}

// coded gives an error a code: that of the first one in it that has one.
func coded(err error) error {
	var e *types.Error
	var clash *forward.ClashError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &e):
		return types.NewError(e.Code, err.Error(), e.Details)
	case errors.As(err, &clash):
		return failure(codeClash, "%v; remove that pod, or give this one another address", err)
	}
	return failure(codeKernel, "%v", err)
}

func (c *command) add(done *undo) (*current.Result, error) {
	switch {
	case c.Mode == modeLoopback:
		return c.addLoopback()
	case c.chained:
		return c.join(done)
	}
	if c.prev != nil {
		return nil, failure(types.ErrInvalidNetworkConfig, "another plugin has attached the pod already; leave ipam out in a chain")
	}
	name := c.names()
	if _, err := netlink.LinkByName(name.host); err == nil {
		return nil, failure(codeClash, "container %s has an attachment %s to network %s; call DEL first", c.args.ContainerID, c.args.IfName, c.Name)
	}
	ns, err := openPod(c.args.Netns)
	if err != nil {
		return nil, err
	}
	*done = append(*done, ns.Close) // in case of success the process ends
	given, err := c.ipamAdd(done)
	if err != nil {
		return nil, err
	}
	if err := c.plane.prepare(given); err != nil {
		return nil, ofNetwork(err)
	}
	l, err := c.makeLink(ns, name, done)
	if err != nil {
		return nil, err
	}
	if err := c.attach(l, name, given, done); err != nil {
		return nil, err
	}
	if err := l.configurePod(c.args.IfName, given, c.plane); err != nil {
		return nil, err
	}
	if err := l.announce(c.args.IfName); err != nil {
		return nil, err
	}
	return c.result(l, given), nil
}

// attach leads the pod's link to the plane. No packet passes it before the programs are there.
func (c *command) attach(l *podLink, name names, given *current.Result, done *undo) error {
	if err := c.plane.connect(l, name, given, done); err != nil {
		return ofNetwork(err)
	}
	if err := c.enter(l, given, done); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(l.host); err != nil {
		return fmt.Errorf("set link %s up: %w", name.host, err)
	}
	return ofNetwork(c.plane.open(l, name, given))
}

// ofNetwork gives a plane's error the code of the network, unless it has a code.
func ofNetwork(err error) error {
	var e *types.Error
	if err == nil || errors.As(err, &e) {
		return err
	}
	return failure(codeNetwork, "%v", err)
}

// enter enters the pod into the table, which attaches the programs.
func (c *command) enter(l *podLink, given *current.Result, done *undo) error {
	if !c.programs() {
		return nil
	}
	t, err := forward.Open()
	if err != nil {
		return failure(codeKernel, "%v; or set directForward and antiSpoof to false", err)
	}
	defer t.Close()
	p, err := c.pod(l, given)
	if err != nil {
		return err
	}
	if l.end != 0 {
		if err := t.End(l.end); err != nil {
			return err
		}
	}
	*done = append(*done, func() error { return leave(p.Device) })
	return t.Add(p)
}

// leave removes a pod from the table, if there is one.
func leave(device int) error {
	return withTable(func(t *forward.Table) error { return t.Remove(device) })
}

// withTable calls a function with the table, if there is one.
func withTable(use func(*forward.Table) error) error {
	t, err := forward.OpenExisting()
	if errors.Is(err, forward.ErrNoTable) {
		return nil
	}
	if err != nil {
		return err
	}
	defer t.Close()
	return use(t)
}

// pod is the row of the table.
func (c *command) pod(l *podLink, given *current.Result) (forward.Pod, error) {
	p := forward.Pod{
		Device: l.host.Attrs().Index, Network: l.network, Wire: l.wire,
		Direct:  c.DirectForward && c.Mode != modeDPU, // there, the controller switches it on
		Checked: c.AntiSpoof, AllPairs: c.Pairs == "all",
	}
	copy(p.MAC[:], l.mac)
	if l.routed {
		copy(p.Gateway[:], l.host.Attrs().HardwareAddr)
	}
	for _, ip := range given.IPs {
		if ip.Interface != nil && *ip.Interface != l.index {
			continue
		}
		p.Addrs = append(p.Addrs, addrOf(ip.Address.IP))
	}
	if n := len(p.Addrs); n == 0 || n > forward.AddrsMax {
		return p, failure(codeAddresses, "the pod has %d addresses; direct forward and antiSpoof take 1 to %d", n, forward.AddrsMax)
	}
	return p, nil
}

// del removes everything of an attachment, the addresses last: as long as something leads to the
// pod, no other pod may have them.
func del(args *skel.CmdArgs) error {
	cmd, err := newCommand(args)
	if err != nil {
		return err
	}
	switch {
	case cmd.Mode == modeLoopback:
		return nil
	case cmd.chained:
		return coded(cmd.part())
	}
	if err := cmd.remove(args.ContainerID, args.IfName); err != nil {
		return coded(err)
	}
	return coded(cmd.ipamDel(args.ContainerID, args.IfName))
}

// remove removes the links of an attachment, whichever of them are there.
func (c *command) remove(container, ifname string) error {
	name := namesOf(c.Name, container, ifname)
	link, err := findLink(name.host)
	if err != nil {
		return err
	}
	if link != nil {
		err = leave(link.Attrs().Index)
	} else {
		// The link has gone with the pod's namespace.
		err = withTable((*forward.Table).Sweep)
	}
	if err != nil {
		return err
	}
	if link != nil {
		if err := deleteLink(link); err != nil {
			return err
		}
	}
	return ofNetwork(c.plane.disconnect(name))
}

// status says whether ADD would work.
func status(args *skel.CmdArgs) error {
	cmd, err := newCommand(args)
	if err != nil {
		return err
	}
	if err := cmd.status(); err != nil {
		return failure(codeNoService, "%v", coded(err))
	}
	return nil
}

func (c *command) status() error {
	if c.programs() {
		t, err := forward.Open()
		if err != nil {
			return err
		}
		if err := t.Close(); err != nil {
			return err
		}
	}
	if c.chained {
		return nil
	}
	if err := c.plane.usable(); err != nil {
		return err
	}
	return c.ipam(context.Background(), "STATUS", c.args.ContainerID, c.args.IfName, c.args.StdinData)
}

// removeNameless deletes a wire that has no owner's name, unless an ADD is about to give it one: the pod's
// link, which ADD makes before the wire, is there.
func removeNameless(wire netlink.Link, digest string) error {
	host, err := findLink(hostPrefix + digest)
	if err != nil || host != nil || wire.Type() != "veth" || !digestPattern.MatchString(digest) {
		return err
	}
	return deleteLink(wire)
}

// collect removes the attachments of this network that the runtime does not know.
func collect(args *skel.CmdArgs) error {
	cmd, err := newCommand(args)
	if err != nil {
		return err
	}
	known := map[forward.Owner]bool{}
	for _, a := range cmd.ValidAttachments {
		known[forward.Owner{Network: cmd.Name, Container: a.ContainerID, Interface: a.IfName}] = true
	}
	links, err := netns.Dump(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	var errs []error
	for _, link := range links {
		if digest, ok := strings.CutPrefix(link.Attrs().Name, wirePrefix); ok && link.Attrs().Alias == "" {
			errs = append(errs, removeNameless(link, digest))
			continue
		}
		o, ok := ownerOf(link)
		if !ok || o.Network != cmd.Name || known[o] {
			continue
		}
		if cmd.chained {
			errs = append(errs, cmd.partLink(link))
			continue
		}
		err := cmd.remove(o.Container, o.Interface)
		if err == nil {
			err = cmd.ipamDel(o.Container, o.Interface)
		}
		errs = append(errs, err)
	}
	errs = append(errs, withTable((*forward.Table).Sweep)) // of links that have gone by now
	if !cmd.chained {
		errs = append(errs, cmd.ipam(context.Background(), "GC", "", "", args.StdinData))
	}
	return coded(errors.Join(errs...))
}
