package cni

import (
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/tsugiki/tsugiki/forward"
	"github.com/tsugiki/tsugiki/forward/offload/card"
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

// free returns a VF that no pod has.
func (o *offloaded) free() (own netlink.Link, err error) {
	taken := 0
	err = o.each(func(_ card.VF, link netlink.Link) bool {
		if link.Attrs().Alias != "" {
			taken++
			return false
		}
		own = link
		return true
	})
	if err == nil && own == nil && taken == 0 {
		err = fmt.Errorf("the host has no VF; make them: write their number to /sys/class/net/LINK/device/sriov_numvfs, or see dpu-agent --emulate-vfs")
	} else if err == nil && own == nil {
		err = fmt.Errorf("each of the %d VFs has a pod; remove pods, or make more VFs", taken)
	}
	return own, err
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
