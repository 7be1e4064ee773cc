package cni

import (
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/tsugiki/tsugiki/forward"
	"github.com/tsugiki/tsugiki/internal/netns"
)

// drift is something that is not as ADD made it any more.
type drift struct {
	says   string // CHECK, among other words
	change func(r *rig, p *pod) error
	undo   func(r *rig, p *pod) error // for DEL, which could not know
}

// ownLink changes the pod's end.
func ownLink(change func(netlink.Link) error) func(*rig, *pod) error {
	return func(_ *rig, p *pod) error {
		return p.ns.Do(func() error {
			link, err := netlink.LinkByName("eth0")
			if err == nil {
				err = change(link)
			}
			return err
		})
	}
}

// hostLink changes one of the host's links of a pod.
func hostLink(name func(names) string, change func(netlink.Link) error) func(*rig, *pod) error {
	return func(r *rig, p *pod) error {
		return r.host.Do(func() error {
			link, err := netlink.LinkByName(name(namesOf("drift", p.conf.ContainerID, "eth0")))
			if err == nil {
				err = change(link)
			}
			return err
		})
	}
}

func ofHost(n names) string { return n.host }
func ofWire(n names) string { return n.wire }
func ofPort(n names) string { return n.port }
func ofVF(names) string     { return "vf0-0" } // the first one that is free

// tableDrift is of all modes in which the plugin finds its pods by the name of the link.
var tableDrift = []drift{
	{says: "no such pod", change: hostLink(ofHost, func(l netlink.Link) error { return leave(l.Attrs().Index) })},
	{says: "is not attached", change: hostLink(ofHost, func(l netlink.Link) error {
		return withTable(func(t *forward.Table) error {
			p, err := t.Pod(l.Attrs().Index)
			return errors.Join(err, t.Detach(p))
		})
	})},
	{says: "does not lead to the pod", change: func(*rig, *pod) error { return emptyMap("device_by_addr") }},
	{says: "does not lead to the pod", change: func(*rig, *pod) error { return emptyMap("device_by_mac") }},
	{
		says:   "the alias",
		change: hostLink(ofHost, func(l netlink.Link) error { return netlink.LinkSetAlias(l, "another") }),
		undo:   hostLink(ofHost, func(l netlink.Link) error { return netlink.LinkSetAlias(l, "") }),
	},
	{says: "is down", change: hostLink(ofHost, netlink.LinkSetDown)},
	{says: "eth0", change: hostLink(ofHost, netlink.LinkDel)},
	{says: "the link eth0 of the container is down", change: ownLink(netlink.LinkSetDown)},
	{says: "MAC address", change: ownLink(func(l netlink.Link) error {
		return netlink.LinkSetHardwareAddr(l, net.HardwareAddr{2, 0, 0, 0, 0, 1})
	})},
	{says: "has not the address 198.51.100", change: removeAddr(netlink.FAMILY_V4)},
	{says: "has not the address 2001:db8", change: removeAddr(netlink.FAMILY_V6)},
	{says: "no route to 0.0.0.0/0", change: removeRoute("0.0.0.0/0")},
	{says: "no route to ::/0", change: removeRoute("::/0")},
}

func removeAddr(family int) func(*rig, *pod) error {
	return ownLink(func(l netlink.Link) error {
		list, err := netns.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(l, family) })
		for _, a := range list {
			if a.IP.IsGlobalUnicast() {
				err = errors.Join(err, netlink.AddrDel(l, &a))
			}
		}
		return err
	})
}

func removeRoute(to string) func(*rig, *pod) error {
	return ownLink(func(l netlink.Link) error {
		_, dst, err := net.ParseCIDR(to)
		if err == nil {
			err = netlink.RouteDel(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: dst})
		}
		return err
	})
}

// The drift of one mode.
var (
	bridgeDrift = []drift{{says: "not a port of bridge", change: hostLink(ofHost, netlink.LinkSetNoMaster)}}
	routedDrift = []drift{
		{says: "the host has no route to 198.51.100", change: removeHostRoute(netlink.FAMILY_V4)},
		{says: "the host has no route to 2001:db8", change: removeHostRoute(netlink.FAMILY_V6)},
	}
	switchDrift = []drift{
		{says: "there is no link tw", change: hostLink(ofWire, netlink.LinkDel)},
		{says: "tw", change: hostLink(ofWire, netlink.LinkSetDown)},
		{says: "ts", change: hostLink(ofPort, netlink.LinkSetDown)},
		{says: "forward_end", change: hostLink(ofPort, removePrograms)},
		{says: "forward_from_wire", change: hostLink(ofWire, removePrograms)},
		{says: "does not lead to the pod", change: func(*rig, *pod) error { return emptyMap("device_by_wire") }},
		{says: "no port ts", change: func(r *rig, p *pod) error {
			r.vs.vsctl("del-port", namesOf("drift", p.conf.ContainerID, "eth0").port)
			return nil
		}},
		{says: "br-other", change: func(r *rig, p *pod) error {
			port := namesOf("drift", p.conf.ContainerID, "eth0").port
			r.vs.vsctl("--may-exist", "add-br", "br-other", "--", "set", "bridge", "br-other", "datapath_type=netdev",
				"--", "del-port", port, "--", "add-port", "br-other", port)
			return nil
		}},
	}
)

var cardDrift = []drift{
	{
		says:   "no VF of the card is the pod's",
		change: hostLink(ofVF, func(l netlink.Link) error { return netlink.LinkSetAlias(l, "") }),
		undo: func(r *rig, p *pod) error {
			alias := namesOf("drift", p.conf.ContainerID, "eth0").Alias()
			return hostLink(ofVF, func(l netlink.Link) error { return netlink.LinkSetAlias(l, alias) })(r, p)
		},
	},
	{says: "vf0-0 is down", change: hostLink(ofVF, netlink.LinkSetDown)},
	{says: "forward_from_wire", change: hostLink(ofVF, removePrograms)},
	{says: "does not lead to the pod", change: func(*rig, *pod) error { return emptyMap("device_by_wire") }},
	{says: "no port rep0-0", change: func(r *rig, _ *pod) error {
		r.dpu.vsctl("del-port", "rep0-0")
		return nil
	}},
	{says: "no flows for the port rep0-0", change: func(r *rig, _ *pod) error {
		r.dpu.vsctl("remove", "interface", "rep0-0", "external_ids", "tsugiki-installed", "--", "set", "interface", "rep0-0", "external_ids:tsugiki-addresses=203.0.113.1")
		return nil
	}},
	{says: "the port rep0-1 for the pod", change: func(r *rig, p *pod) error {
		r.dpu.vsctl("set", "interface", "rep0-0", "external_ids:tsugiki-container=another")
		r.dpu.vsctl("add-port", "br-int", "rep0-1", "--", "set", "interface", "rep0-1", "external_ids:tsugiki-network=drift",
			"external_ids:tsugiki-container="+p.conf.ContainerID, "external_ids:tsugiki-interface=eth0", "external_ids:tsugiki-device=1",
			`external_ids:tsugiki-mac="02:00:00:00:00:77"`)
		return nil
	}, undo: func(r *rig, _ *pod) error { // the controller may have removed it
		r.dpu.vsctl("--if-exists", "del-port", "rep0-0")
		return nil
	}},
}

// removePrograms removes a link's filters, and what they are added to.
func removePrograms(l netlink.Link) error {
	return netlink.QdiscDel(&netlink.GenericQdisc{QdiscType: "clsact", QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}})
}

func removeHostRoute(family int) func(*rig, *pod) error {
	return hostLink(ofHost, func(l netlink.Link) error {
		list, err := netns.Dump(func() ([]netlink.Route, error) { return netlink.RouteList(l, family) })
		for _, r := range list {
			if r.Dst != nil && r.Dst.IP.IsGlobalUnicast() {
				err = errors.Join(err, netlink.RouteDel(&r))
			}
		}
		return err
	})
}

// CHECK finds whatever is not as ADD made it.
func TestCheckFindsDrift(t *testing.T) {
	eachMode(t, func(t *testing.T, r *rig, m mode) {
		if m.chained { // another plugin's CHECK looks at the link first
			return
		}
		n := r.network("drift", m.plugins(r, nil)...)
		for i, d := range append(tableDrift, m.drift...) {
			t.Run(fmt.Sprintf("%d %s", i, d.says), func(t *testing.T) {
				p := n.pods(1)[0]
				must(t, n.check(p))
				must(t, d.change(r, p))
				has(t, n.check(p), codeDrift, d.says, "add it again")
				if d.undo != nil {
					must(t, d.undo(r, p))
				}
				must(t, n.del(p))
				r.nothing(n)
			})
		}
	})
}
