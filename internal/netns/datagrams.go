package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The rule and the table by which UDP leaves where nothing else has a route. Numbers are ours alone.
const (
	datagramTable    = 7450
	datagramPriority = 32900 // behind the tables main and default
)

// RouteDatagrams sets up a link of the calling thread's namespace, gives it addresses, and has UDP leave by
// it that no other route covers: of the families of the addresses. Other protocols have no route more.
// Addresses of a family that the kernel does not have are left out. It needs CAP_NET_ADMIN and Linux
// 4.17. What it has made goes with the link, but for the rule, which then leads nowhere.
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
	for _, addr := range addrs {
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
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: all, Src: ip, Table: datagramTable}
	if err := netlink.RouteReplace(route); err != nil {
		return err
	}
	if err := netlink.RuleAdd(rule); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}
