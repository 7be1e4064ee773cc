package netns

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// Addresses returns the addresses of the namespace's links.
func (ns *NS) Addresses() (list []netip.Addr, err error) {
	err = ns.In(func() error {
		addrs, err := Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
		for _, a := range addrs {
			if addr, ok := netip.AddrFromSlice(a.IP); ok {
				list = append(list, addr.Unmap())
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	return list, nil
}

// AddToLoopback gives the namespace's loopback another address. It needs CAP_NET_ADMIN there.
func (ns *NS) AddToLoopback(addr netip.Addr) error {
	err := ns.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		ipnet := &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())}
		return netlink.AddrAdd(lo, &netlink.Addr{IPNet: ipnet})
	})
	if err != nil {
		return fmt.Errorf("add address %s to loopback: %w", addr, err)
	}
	return nil
}
