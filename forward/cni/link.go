package cni

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/forward"
	"github.com/tsugiki/tsugiki/internal/netns"
)

// names are the host's links of one attachment.
type names struct {
	forward.Owner
	host string // the other end is in the pod
	wire string // mode ovs: from the host's end to the switch
	port string // the wire's end that is the switch's port
}

// ownerOf returns whose link it is, if it is an attachment's host end.
func ownerOf(link netlink.Link) (forward.Owner, bool) { return forward.OwnerOf(link.Attrs().Alias) }

// Prefixes of the names, before a digest.
const (
	hostPrefix = "tp"
	wirePrefix = "tw"
	portPrefix = "ts"
)

// digestPattern matches the digest of a name.
var digestPattern = regexp.MustCompile("^[0-9a-f]{13}$")

// namesOf computes them: 13 hexadecimal digits of a digest.
func namesOf(network, container, ifname string) names {
	o := forward.Owner{Network: network, Container: container, Interface: ifname}
	digest := fmt.Sprintf("%x", sha256.Sum256([]byte(o.Alias())))[:13]
	return names{o, hostPrefix + digest, wirePrefix + digest, portPrefix + digest}
}

func (c *command) names() names { return namesOf(c.Name, c.args.ContainerID, c.args.IfName) }

// podLink is the link of a pod.
type podLink struct {
	ns      *netns.NS // the pod's; only while ADD makes it
	host    netlink.Link
	mac     net.HardwareAddr // of the pod's end
	network uint32           // forward.Pod.Network
	wire    int              // forward.Pod.Wire
	end     int              // the switch's port, where the host must not listen
	routed  bool
	quiet   bool // neighbors hear no announcements, and need none
	index   int  // of the pod's end among the result's interfaces
	mtu     int
}

// findLink returns nil if there is no such link.
func findLink(name string) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find link %s: %w", name, err)
	}
	return link, nil
}

func deleteLink(link netlink.Link) error {
	err := netlink.LinkDel(link)
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete link %s: %w", link.Attrs().Name, err)
	}
	return nil
}

// openPod opens the pod's namespace, which must not be this process's.
func openPod(path string) (*netns.NS, error) {
	pod, err := netns.Open(path)
	if err != nil {
		return nil, failure(types.ErrInvalidNetNS, "%v", err)
	}
	host, err := netns.Current()
	if err != nil {
		return nil, errors.Join(err, pod.Close())
	}
	defer host.Close()
	if host.Cookie() == pod.Cookie() {
		return nil, errors.Join(failure(types.ErrInvalidNetNS, "the container has the host's network namespace; do not attach it to a network"), pod.Close())
	}
	return pod, nil
}

// randomMAC is a MAC address for a new link. udev replaces an address that the kernel has chosen
// (systemd.link(5), MACAddressPolicy), when neighbors know it already.
func randomMAC() net.HardwareAddr {
	mac := make(net.HardwareAddr, 6)
	_, _ = rand.Read(mac)     // never fails
	mac[0] = mac[0]&^1 | 1<<1 // one link's, locally administered
	return mac
}

// makeLink makes the link of a pod. Both ends are down.
func (c *command) makeLink(ns *netns.NS, name names, done *undo) (*podLink, error) {
	l := &podLink{ns: ns, index: 1, mtu: c.MTU}
	if l.mtu == 0 {
		l.mtu = c.plane.mtu()
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = name.host, l.mtu, randomMAC()
	mac := c.mac
	if mac == nil {
		mac = randomMAC()
	}
	err := netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: attrs, PeerName: c.args.IfName, PeerNamespace: netlink.NsFd(int(ns.File().Fd())), PeerMTU: uint32(l.mtu), PeerHardwareAddr: mac,
	})
	if errors.Is(err, os.ErrExist) {
		return nil, failure(codeClash, "the container has an interface %s, or the host a link %s; choose another CNI_IFNAME, or call DEL", c.args.IfName, name.host)
	}
	if err != nil {
		return nil, fmt.Errorf("make link %s: %w", name.host, err)
	}
	if l.host, err = netlink.LinkByName(name.host); err != nil {
		return nil, fmt.Errorf("find link %s: %w", name.host, err)
	}
	*done = append(*done, func() error { return deleteLink(l.host) })
	if err := netlink.LinkSetAlias(l.host, name.Alias()); err != nil {
		return nil, fmt.Errorf("name owner of link %s: %w", name.host, err)
	}
	err = ns.Do(func() error {
		own, err := netlink.LinkByName(c.args.IfName)
		if err == nil {
			l.mac = own.Attrs().HardwareAddr
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("find link %s in the container: %w", c.args.IfName, err)
	}
	return l, nil
}

// configurePod gives the pod's end its addresses and routes, and sets it up.
func (l *podLink) configurePod(ifname string, given *current.Result, p plane) error {
	return l.ns.Do(func() error {
		link, err := netlink.LinkByName(ifname)
		if err != nil {
			return fmt.Errorf("find link %s in the container: %w", ifname, err)
		}
		for _, f := range []string{"ipv4/conf/%s/arp_notify=1", "ipv6/conf/%s/disable_ipv6=0", "ipv6/conf/%s/ndisc_notify=1"} {
			key, value, _ := strings.Cut(fmt.Sprintf(f, ifname), "=")
			// Without IPv6 in the kernel there is no file.
			if err := os.WriteFile("/proc/sys/net/"+key, []byte(value), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("set net/%s of the container: %w", key, err)
			}
		}
		for _, ip := range given.IPs {
			a := &netlink.Addr{IPNet: &ip.Address}
			if ip.Address.IP.To4() == nil {
				a.Flags = unix.IFA_F_NODAD // the IPAM plugin sees to it
			}
			if err := netlink.AddrAdd(link, a); err != nil {
				return fmt.Errorf("add address %s: %w", ip.Address.String(), err)
			}
		}
		if err := p.configure(link, l); err != nil {
			return err
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("set link %s of the container up: %w", ifname, err)
		}
		return l.addRoutes(link, given, p)
	})
}

// announceLimit is how long ADD waits until neighbors can hear the pod. On a node whose links change much, the queue takes
// seconds. The kernel announces nothing again after that.
const announceLimit = 20 * time.Second

// announce has the kernel announce the pod's addresses to neighbors, which may know another MAC
// address of a pod that had them: they would ask again after half a minute only. The kernel does so
// when a link is set up, but a bridge's port drops what comes before the bridge has heard, by a work
// queue, that the port is up. Setting the MAC address makes the kernel do it again (arp_notify and
// ndisc_notify), when the bridge has enabled the port: both hold the lock of the kernel's links.
func (l *podLink) announce(ifname string) error {
	if l.routed || l.quiet {
		return nil // the host is the only neighbor, and was told; or the switch knows
	}
	for began := time.Now(); time.Since(began) < announceLimit; time.Sleep(time.Millisecond) {
		host, err := netlink.LinkByIndex(l.host.Attrs().Index)
		if err != nil {
			return fmt.Errorf("find link %s: %w", l.host.Attrs().Name, err)
		}
		if host.Attrs().OperState == netlink.OperUp {
			break
		}
	}
	return l.ns.Do(func() error {
		link, err := netlink.LinkByName(ifname)
		if err == nil {
			err = netlink.LinkSetHardwareAddr(link, l.mac)
		}
		if err != nil {
			return fmt.Errorf("announce link %s of the container: %w", ifname, err)
		}
		return nil
	})
}

// addRoutes adds the routes that the IPAM plugin gave, and those of the plane. Those that lead to
// another link of the container stay there, and the result leaves them out.
func (l *podLink) addRoutes(link netlink.Link, given *current.Result, p plane) error {
	if err := p.addRoutes(link, l, given); err != nil {
		return err
	}
	if l.routed {
		return nil // the default route leads everywhere
	}
	var own []*types.Route
	for _, r := range given.Routes {
		gw := r.GW
		if gw == nil {
			gw = gatewayFor(r.Dst.IP, given)
		}
		there, err := addRoute(link, &netlink.Route{Dst: &r.Dst, Gw: gw, MTU: r.MTU, AdvMSS: r.AdvMSS, Priority: r.Priority})
		if err != nil {
			return fmt.Errorf("add route to %s by %s: %w", r.Dst.String(), gw, err)
		}
		if there {
			own = append(own, r)
		}
	}
	given.Routes = own
	return nil
}

// addRoute adds a route, and tells whether the link has one to this prefix. The container may have
// one by another link.
func addRoute(link netlink.Link, r *netlink.Route) (bool, error) {
	r.LinkIndex = link.Attrs().Index
	err := netlink.RouteAdd(r)
	if err == nil || !errors.Is(err, os.ErrExist) {
		return err == nil, err
	}
	list, err := netns.Dump(func() ([]netlink.Route, error) { return netlink.RouteList(link, netlink.FAMILY_ALL) })
	return slices.ContainsFunc(list, func(has netlink.Route) bool { return prefixOf(has) == prefixOf(*r) }), err
}

// prefixOf is where a route leads. That of a default route can be missing.
func prefixOf(r netlink.Route) string {
	if r.Dst != nil {
		return r.Dst.String()
	}
	if r.Family == netlink.FAMILY_V4 || r.Gw.To4() != nil {
		return "0.0.0.0/0"
	}
	return "::/0"
}

// gatewayFor is that of the address of the same family.
func gatewayFor(dst net.IP, given *current.Result) net.IP {
	for _, ip := range given.IPs {
		if (ip.Address.IP.To4() == nil) == (dst.To4() == nil) && ip.Gateway != nil {
			return ip.Gateway
		}
	}
	return nil
}

// result returns the output of ADD.
func (c *command) result(l *podLink, given *current.Result) *current.Result {
	r := &current.Result{CNIVersion: current.ImplementedSpecVersion, Routes: given.Routes, DNS: given.DNS}
	r.Interfaces = []*current.Interface{
		{Name: l.host.Attrs().Name, Mac: l.host.Attrs().HardwareAddr.String(), Mtu: l.mtu},
		{Name: c.args.IfName, Mac: l.mac.String(), Mtu: l.mtu, Sandbox: c.args.Netns},
	}
	for _, ip := range given.IPs {
		own := ip.Copy()
		own.Interface = current.Int(l.index)
		r.IPs = append(r.IPs, own)
	}
	if len(c.DNS.Nameservers)+len(c.DNS.Search)+len(c.DNS.Options)+len(c.DNS.Domain) > 0 {
		r.DNS = c.DNS
	}
	return r
}
