package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The rules and the table by which UDP leaves where nothing else has a route. Numbers are ours alone.
const (
	datagramTable    = 7450
	datagramPriority = 32900 // behind the tables main and default
)

// ErrorTOS is the type of service (RFC 791) of ICMP messages that come by the link. The kernel takes them only
// if it has a route back to their sender (rp_filter), which it looks for by their protocol and TOS.
const ErrorTOS = 0x10

// RouteDatagrams sets up a link of the calling thread's namespace, gives it addresses, and has UDP leave by
// it that no other route covers: of the families of the addresses. Of other protocols,
// only ICMP of IPv4 with ErrorTOS has a route more, so that ping(8) has none. Addresses of a family that the
// kernel does not have are left out. The route of the first address is what is made last. It needs
// CAP_NET_ADMIN and Linux 4.17. What it has made goes with the link, but for the rules, which then lead nowhere.
func RouteDatagrams(name string, mtu int, addrs []netip.Addr) error {
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetMTU(link, mtu)
	}
	if err == nil {
		err = netlink.LinkSetUp(link)
	}
	if err != nil {
		return fmt.Errorf("set link %s up: %w", name, err)
	}
	for _, addr := range slices.Backward(addrs) {
		if err := routeFamily(link, addr); err != nil {
			if addr.Is6() && (errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EACCES)) {
				continue // no IPv6, or it is switched off
			}
			return fmt.Errorf("route datagrams of %s by %s: %w", addr, name, err)
		}
	}
	return nil
}

func routeFamily(link netlink.Link, addr netip.Addr) error {
	ip := net.IP(addr.AsSlice())
	own := &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())}}
	rule := netlink.NewRule()
	rule.Family, rule.IPProto, rule.Table, rule.Priority = netlink.FAMILY_V4, unix.IPPROTO_UDP, datagramTable, datagramPriority
	all := &net.IPNet{IP: make(net.IP, addr.BitLen()/8), Mask: net.CIDRMask(0, addr.BitLen())}
	if addr.Is6() {
		rule.Family = netlink.FAMILY_V6
		own.Flags = unix.IFA_F_NODAD
	}
	if err := netlink.AddrAdd(link, own); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	rules := []*netlink.Rule{rule}
	if addr.Is4() { // IPv6 has no rp_filter
		back := *rule
		back.IPProto, back.Tos = unix.IPPROTO_ICMP, ErrorTOS
		rules = append(rules, &back)
	}
	for _, r := range rules {
		if err := netlink.RuleAdd(r); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	return netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: all, Src: ip, Table: datagramTable})
}

// DatagramsRouted tells whether RouteDatagrams has made the route of an address in the calling thread's namespace.
func DatagramsRouted(addr netip.Addr) bool {
	family := netlink.FAMILY_V4
	if addr.Is6() {
		family = netlink.FAMILY_V6
	}
	routes, err := Dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(family, &netlink.Route{Table: datagramTable}, netlink.RT_FILTER_TABLE)
	})
	return err == nil && len(routes) > 0
}
