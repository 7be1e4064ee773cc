package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/kernel"
)

// End is one end of a pair of links.
type End struct {
	NS   *NS
	Name string
	Addr netip.Prefix
}

// Connect makes a pair of links, each in its namespace from the beginning, gives both
// their addresses and sets them up. It needs CAP_NET_ADMIN in both namespaces, and veth
// in the kernel.
func Connect(a, b End) error {
	err := a.NS.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = a.Name
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: attrs, PeerName: b.Name, PeerNamespace: netlink.NsFd(int(b.NS.f.Fd())),
		})
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = &kernel.UnsupportedError{Feature: "veth (CONFIG_VETH)", MinVersion: "2.6.24"}
	}
	if err != nil {
		return fmt.Errorf("make link %s: %w", a.Name, err)
	}
	for _, e := range []End{a, b} {
		if err := e.NS.Do(e.setUp); err != nil {
			return fmt.Errorf("set link %s up: %w", e.Name, err)
		}
	}
	return nil
}

func (e End) setUp() error {
	link, err := netlink.LinkByName(e.Name)
	if err != nil {
		return err
	}
	mask := net.CIDRMask(e.Addr.Bits(), e.Addr.Addr().BitLen())
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: e.Addr.Addr().AsSlice(), Mask: mask}}
	if err := netlink.AddrAdd(link, addr); err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}
