package cni

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
)

// plane is where packets of pods go that are not direct: a bridge, the host's routes, a switch.
type plane interface {
	// prepare makes what the first pod needs. Several processes may call it at once.
	prepare(given *current.Result) error
	// usable says what is wrong with what is there, and changes nothing.
	usable() error
	// mtu is what a pod's link gets if the configuration does not say.
	mtu() int
	// connect leads the host's end of a pod's link, which is down, to the plane. It sets the
	// link's network, wire, end and routed.
	connect(l *podLink, name names, given *current.Result, done *undo) error
	// open lets packets through, when the programs are on the link and its host's end is up.
	open(l *podLink, name names, given *current.Result) error
	// disconnect removes what connect has made, besides the pod's link. It may be gone.
	disconnect(name names) error
	// connected says what is not as connect has made it.
	connected(host netlink.Link, name names) error
	// configure changes the pod's end; the thread is in the pod.
	configure(own netlink.Link, l *podLink) error
	// addRoutes adds routes to those of the IPAM plugin; the thread is in the pod. It removes from
	// the result those that the link does not get.
	addRoutes(own netlink.Link, l *podLink, given *current.Result) error
}

const usualMTU = 1500

// bridge is a bridge of the kernel's.
type bridge struct {
	name    string
	gateway bool // it has the gateway's addresses
}

func (b bridge) prepare(given *current.Result) error {
	attrs := netlink.NewLinkAttrs()
	// A bridge with no address of its own takes its ports', and another one as pods come and go.
	attrs.Name, attrs.HardwareAddr = b.name, randomMAC()
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make bridge %s: %w", b.name, err)
	}
	br, err := b.find()
	if err != nil {
		return err
	}
	if br.Attrs().Flags&net.FlagUp == 0 && len(given.IPs) > 0 {
		if err := netlink.LinkSetUp(br); err != nil {
			return fmt.Errorf("set bridge %s up: %w", b.name, err)
		}
	}
	if !b.gateway {
		return nil
	}
	for _, ip := range given.IPs {
		if ip.Gateway == nil {
			continue
		}
		a := &netlink.Addr{IPNet: &net.IPNet{IP: ip.Gateway, Mask: ip.Address.Mask}, Flags: unix.IFA_F_NODAD}
		if err := netlink.AddrAdd(br, a); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("add gateway %s to bridge %s: %w", ip.Gateway, b.name, err)
		}
		if err := forwarding(ip.Gateway); err != nil {
			return err
		}
	}
	return nil
}

// forwarding has the host route packets of the family of an address.
func forwarding(ip net.IP) error {
	file := "/proc/sys/net/ipv4/ip_forward"
	if ip.To4() == nil {
		file = "/proc/sys/net/ipv6/conf/all/forwarding"
	}
	if was, err := os.ReadFile(file); err == nil && len(was) > 0 && was[0] == '1' {
		return nil
	}
	return os.WriteFile(file, []byte("1"), 0)
}

// find returns the bridge, which must be one.
func (b bridge) find() (netlink.Link, error) {
	link, err := findLink(b.name)
	if err != nil {
		return nil, err
	}
	if link == nil {
		return nil, fmt.Errorf("there is no bridge %s; ADD makes it", b.name)
	}
	if link.Type() != "bridge" {
		return nil, fmt.Errorf("%s is a link of type %s and no bridge; remove it, or name another bridge", b.name, link.Type())
	}
	return link, nil
}

func (b bridge) usable() error {
	link, err := findLink(b.name)
	if err != nil || link == nil { // ADD makes it
		return err
	}
	if _, err := b.find(); err != nil {
		return err
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		return fmt.Errorf("the bridge %s is down; set it up: ip link set %s up", b.name, b.name)
	}
	return nil
}

func (b bridge) mtu() int {
	if link, err := b.find(); err == nil {
		return link.Attrs().MTU
	}
	return usualMTU
}

func (b bridge) connect(l *podLink, name names, _ *current.Result, _ *undo) error {
	br, err := b.find()
	if err != nil {
		return err
	}
	l.network = uint32(br.Attrs().Index)
	if err := netlink.LinkSetMaster(l.host, br); err != nil {
		return fmt.Errorf("add link %s to bridge %s: %w", name.host, b.name, err)
	}
	return nil
}

func (bridge) open(*podLink, names, *current.Result) error { return nil }

func (bridge) disconnect(names) error { return nil } // the bridge forgets a link that is deleted

func (b bridge) connected(host netlink.Link, name names) error {
	br, err := b.find()
	if err != nil {
		return err
	}
	if host.Attrs().MasterIndex != br.Attrs().Index {
		return fmt.Errorf("the link %s is not a port of bridge %s", name.host, b.name)
	}
	return b.usable()
}

func (bridge) configure(netlink.Link, *podLink) error { return nil }

func (bridge) addRoutes(netlink.Link, *podLink, *current.Result) error { return nil }

// routes is the host as the pods' router: each pod has a route of its own, and none a neighbor
// but the host.
type routes struct {
	prev *current.Result // CHECK: the result of ADD
}

// The addresses of the gateway in each pod. They are link-local, and nobody has them: the pod's
// entry for the neighbor says where they are.
var (
	gateway4 = net.IPv4(169, 254, 1, 1).To4()
	gateway6 = net.ParseIP("fe80::1")
)

func (routes) prepare(given *current.Result) error {
	for _, ip := range given.IPs {
		if err := forwarding(ip.Address.IP); err != nil {
			return fmt.Errorf("have the host route: %w", err)
		}
	}
	return nil
}

func (routes) usable() error { return nil }

func (routes) mtu() int { return usualMTU }

// whole is the prefix of one address.
func whole(ip net.IP) *net.IPNet {
	if ip4 := ip.To4(); ip4 != nil {
		ip = ip4
	}
	return &net.IPNet{IP: ip, Mask: net.CIDRMask(8*len(ip), 8*len(ip))}
}

func (routes) connect(l *podLink, _ names, _ *current.Result, _ *undo) error {
	l.routed = true
	return nil
}

// open adds the routes now, because the kernel takes them only of links that are up.
func (routes) open(l *podLink, _ names, given *current.Result) error {
	for _, ip := range given.IPs {
		to := whole(ip.Address.IP)
		ip.Address, ip.Gateway = *to, nil
		neighbor := &netlink.Neigh{LinkIndex: l.host.Attrs().Index, State: netlink.NUD_PERMANENT, IP: to.IP, HardwareAddr: l.mac}
		if err := netlink.NeighSet(neighbor); err != nil {
			return fmt.Errorf("enter neighbor %s: %w", to.IP, err)
		}
		err := netlink.RouteAdd(&netlink.Route{LinkIndex: l.host.Attrs().Index, Dst: to, Scope: netlink.SCOPE_LINK})
		if errors.Is(err, os.ErrExist) {
			return fmt.Errorf("the host has a route to %s already; remove it, or give ipam another range", to)
		}
		if err != nil {
			return fmt.Errorf("add route to %s: %w", to, err)
		}
	}
	return nil
}

func (routes) disconnect(names) error { return nil } // a link's routes go with it

func (r routes) connected(host netlink.Link, name names) error {
	list, err := netns.Dump(func() ([]netlink.Route, error) { return netlink.RouteList(host, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list routes of link %s: %w", name.host, err)
	}
	for _, ip := range r.prev.IPs {
		to := whole(ip.Address.IP).String()
		if !slices.ContainsFunc(list, func(has netlink.Route) bool { return has.Dst != nil && has.Dst.String() == to }) {
			return fmt.Errorf("the host has no route to %s by link %s", to, name.host)
		}
	}
	return nil
}

func (routes) configure(netlink.Link, *podLink) error { return nil }

func (routes) addRoutes(own netlink.Link, l *podLink, given *current.Result) error {
	// Without an address of its family there is no route.
	given.Routes = slices.DeleteFunc(given.Routes, func(r *types.Route) bool { return !hasFamily(given.IPs, r.Dst.IP) })
	for _, ip := range given.IPs {
		gw := gateway4
		if ip.Address.IP.To4() == nil {
			gw = gateway6
		}
		neighbor := &netlink.Neigh{LinkIndex: own.Attrs().Index, State: netlink.NUD_PERMANENT, IP: gw, HardwareAddr: l.host.Attrs().HardwareAddr}
		if err := netlink.NeighSet(neighbor); err != nil {
			return fmt.Errorf("enter neighbor %s in the container: %w", gw, err)
		}
		there, err := addRoute(own, &netlink.Route{Gw: gw, Flags: int(netlink.FLAG_ONLINK)})
		if err != nil {
			return fmt.Errorf("add route by %s in the container: %w", gw, err)
		}
		if !there {
			given.Routes = slices.DeleteFunc(given.Routes, func(r *types.Route) bool { return (r.Dst.IP.To4() == nil) == (gw.To4() == nil) })
		}
	}
	return nil
}

func hasFamily(list []*current.IPConfig, ip net.IP) bool {
	return slices.ContainsFunc(list, func(c *current.IPConfig) bool { return (c.Address.IP.To4() == nil) == (ip.To4() == nil) })
}
