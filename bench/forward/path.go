package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tsugiki/tsugiki/bench/roundtrip"
	"github.com/tsugiki/tsugiki/forward"
	"github.com/tsugiki/tsugiki/internal/netns"
)

// modeNames are the ways between two pods. Ratios are to the first.
var modeNames = []string{"bridge", "bridge+direct", "routed+direct", "ovs", "ovs+direct"}

// path is two pods and the way between them.
type path struct {
	n      *node
	mode   string
	direct bool
	pods   [2]*benchPod
}

type benchPod struct {
	forward.Pod
	ns *netns.NS
}

// path makes the pods of a mode.
func (n *node) path(ctx context.Context, mode string) (*path, error) {
	p := &path{n: n, mode: mode, direct: strings.HasSuffix(mode, "+direct")}
	for i := range p.pods {
		var err error
		if p.pods[i], err = n.pod(ctx, mode); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// pod makes a pod and its links.
func (n *node) pod(ctx context.Context, mode string) (*benchPod, error) {
	ns, err := n.namespace()
	if err != nil {
		return nil, err
	}
	p := &benchPod{ns: ns, Pod: forward.Pod{
		Network: 1, Direct: true, Checked: true, AllPairs: true, MAC: [6]byte{2, 0, 0, 0, 0, n.next},
		Addrs: []netip.Addr{netip.AddrFrom4([4]byte{198, 51, 100, n.next})},
	}}
	name := fmt.Sprintf("pod%d", n.next)
	n.next++
	err = n.host.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerHardwareAddr: p.MAC[:], PeerNamespace: netlink.NsFd(int(ns.File().Fd()))}
		if err := errors.Join(netlink.LinkAdd(veth), netlink.LinkSetUp(veth)); err != nil {
			return err
		}
		p.Device = veth.Index
		return n.lay(ctx, mode, p, veth)
	})
	if err != nil {
		return nil, fmt.Errorf("make link %s: %w", name, err)
	}
	return p, ns.Do(func() error { return p.configure(mode) })
}

// lay leads the host's end of a pod's link to where the mode has it, and enters the pod into the
// table if the mode is direct.
func (n *node) lay(ctx context.Context, mode string, p *benchPod, veth *netlink.Veth) error {
	switch mode {
	case "bridge", "bridge+direct":
		if err := netlink.LinkSetMaster(veth, n.bridge); err != nil {
			return err
		}
	case "routed+direct":
		link, err := netlink.LinkByIndex(p.Device)
		if err != nil {
			return err
		}
		copy(p.Gateway[:], link.Attrs().HardwareAddr)
	case "ovs":
		return errors.Join(n.table.End(p.Device), n.vsctl(ctx, "add-port", "br-int", veth.Name))
	case "ovs+direct":
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "w" + veth.Name
		wire := &netlink.Veth{LinkAttrs: attrs, PeerName: "s" + veth.Name}
		if err := errors.Join(netlink.LinkAdd(wire), netlink.LinkSetUp(wire)); err != nil {
			return err
		}
		port, err := netlink.LinkByName(wire.PeerName)
		if err != nil {
			return err
		}
		p.Wire = wire.Index
		err = errors.Join(netlink.LinkSetUp(port), n.table.End(port.Attrs().Index), n.vsctl(ctx, "add-port", "br-int", wire.PeerName))
		if err != nil {
			return err
		}
	}
	if mode == "bridge" {
		return nil
	}
	return n.table.Add(p.Pod)
}

// configure gives the pod's end its address; the thread is in the pod. A routed pod takes every
// other one to be behind the host.
func (p *benchPod) configure(mode string) error {
	eth0, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addrs[0].AsSlice(), Mask: net.CIDRMask(24, 32)}}
	if mode == "routed+direct" {
		addr.Mask = net.CIDRMask(32, 32)
	}
	if err := errors.Join(netlink.LinkSetUp(eth0), netlink.AddrAdd(eth0, addr)); err != nil || mode != "routed+direct" {
		return err
	}
	gateway := net.IPv4(169, 254, 1, 1)
	return errors.Join(
		netlink.NeighAdd(&netlink.Neigh{LinkIndex: eth0.Attrs().Index, State: netlink.NUD_PERMANENT, IP: gateway, HardwareAddr: p.Gateway[:]}),
		netlink.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: gateway, Flags: int(netlink.FLAG_ONLINK)}))
}

// directPackets counts those of the first pod.
func (p *path) directPackets() (count uint64, err error) {
	if !p.direct {
		return 0, nil
	}
	c, err := p.n.table.Counts(p.pods[0].Device)
	return c.Packets[forward.Reasons[0].Name], err
}

// roundTrips measures round trips from the first pod to the second, one after the other.
func (p *path) roundTrips(count int) ([]time.Duration, error) {
	end := func(pod *benchPod) roundtrip.End { return roundtrip.End{NS: pod.ns, Addr: pod.Addrs[0]} }
	times, _, err := roundtrip.Measure(end(p.pods[0]), end(p.pods[1]), payload, count)
	return times, err
}
