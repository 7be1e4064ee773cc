package cni

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/tsugiki/tsugiki/forward"
	"github.com/tsugiki/tsugiki/forward/offload/card"
	"github.com/tsugiki/tsugiki/internal/netns"
)

// each calls a function with each VF and its link, until that returns true.
func (o *offloaded) each(found func(card.VF, netlink.Link) bool) error {
	list, err := o.card.VFs()
	if err != nil {
		return err
	}
	for _, vf := range list {
		link, err := findLink(vf.Link)
		if err != nil {
			return err
		}
		if link != nil && found(vf, link) {
			return nil
		}
	}
	return nil
}

// find returns the VF of an attachment, and its link; a nil link if it has none.
func (o *offloaded) find(name names) (own card.VF, link0 netlink.Link, err error) {
	err = o.each(func(vf card.VF, link netlink.Link) bool {
		if owner, ok := ownerOf(link); ok && owner == name.Owner {
			own, link0 = vf, link
		}
		return link0 != nil
	})
	return own, link0, err
}

// free returns a VF that no pod has, and that the host does not use itself.
func (o *offloaded) free() (own netlink.Link, err error) {
	taken, used := 0, []string{}
	err = o.each(func(_ card.VF, link netlink.Link) bool {
		if link.Attrs().Alias != "" {
			taken++
			return false
		}
		if why := use(link); why != "" {
			used = append(used, link.Attrs().Name+" "+why)
			return false
		}
		own = link
		return true
	})
	switch {
	case err != nil || own != nil:
		return own, err
	case len(used) > 0:
		return nil, fmt.Errorf("%d VFs have a pod, and the host uses the others: %s; set one down without addresses and without a master, or make more VFs", taken, strings.Join(used, ", "))
	case taken > 0:
		return nil, fmt.Errorf("each of the %d VFs has a pod; remove pods, or make more VFs", taken)
	}
	return nil, errors.New("the host has no VF; make them: write their number to /sys/class/net/LINK/device/sriov_numvfs, or see dpu-agent --emulate-vfs")
}

// use says how the host uses a link; empty if it does not. The plugin leaves a VF that it gives back
// down, without addresses and without a master.
func use(link netlink.Link) string {
	attrs := link.Attrs()
	if attrs.Flags&net.FlagUp != 0 {
		return "is up"
	}
	if attrs.MasterIndex != 0 {
		return "has a master"
	}
	addrs, err := netns.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Sprintf("has addresses that cannot be listed: %v", err)
	}
	if len(addrs) > 0 {
		return "has the address " + addrs[0].IPNet.String()
	}
	return ""
}

// claim takes a VF for an attachment. Processes that do so at a time take turns.
func (o *offloaded) claim(name names) (own netlink.Link, err error) {
	t, err := forward.Open()
	if err != nil {
		return nil, err
	}
	defer t.Close()
	err = t.Exclusively(func() error {
		if own, err = o.free(); err != nil {
			return err
		}
		if err := netlink.LinkSetAlias(own, name.Alias()); err != nil {
			return fmt.Errorf("name owner of VF %s: %w", own.Attrs().Name, err)
		}
		return nil
	})
	return own, err
}
