package card

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink"

	"github.com/tsugiki/tsugiki/internal/netns"
)

// Emulated is a card of pairs of links (veth): one end is the VF, the other one the representor.
// Nothing of it is hardware: the switch forwards every packet in software.
type Emulated struct{}

var vfPattern = regexp.MustCompile(`^vf(\d{1,2})-(\d{1,4})$`)

// Emulate makes VFs 0 to count-1 of a PF in the namespace of a host, and their representors in that
// of the calling thread. Those that are there stay.
func Emulate(pf, count int, host *netns.NS) error {
	for vf := range count {
		name := RepresentorName(pf, vf)
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		err := netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: attrs, PeerName: fmt.Sprintf("vf%d-%d", pf, vf), PeerNamespace: netlink.NsFd(int(host.File().Fd())),
		})
		if err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("make emulated VF of representor %s: %w", name, err)
		}
	}
	return nil
}

// VFs lists links of type veth whose names are vfPF-NUMBER.
func (Emulated) VFs() ([]VF, error) {
	links, err := netns.Dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var list []VF
	for _, l := range links {
		if m := vfPattern.FindStringSubmatch(l.Attrs().Name); m != nil && l.Type() == "veth" {
			pf, _ := strconv.Atoi(m[1])
			vf, _ := strconv.Atoi(m[2])
			list = append(list, VF{pf, vf, l.Attrs().Name})
		}
	}
	return sorted(list), nil
}

func sorted(list []VF) []VF {
	slices.SortFunc(list, func(a, b VF) int { return cmp.Or(a.PF-b.PF, a.Number-b.Number) })
	return list
}

// Prepare has nothing to do: Emulate has made the representors.
func (Emulated) Prepare() (hardware bool, err error) { return false, nil }

// Representors lists links by their names.
func (Emulated) Representors() ([]string, error) { return representors() }

func representors() ([]string, error) {
	links, err := netns.Dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var list []string
	for _, l := range links {
		if name := l.Attrs().Name; IsRepresentor(name) {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list, nil
}
