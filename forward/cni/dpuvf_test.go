package cni

import (
	"errors"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/tsugiki/tsugiki/forward"
	"github.com/tsugiki/tsugiki/forward/offload/card"
)

// A VF that the host uses itself is no pod's: one that is up, that has an address or a master.
func TestFreeVF(t *testing.T) {
	host, switched := newNS(t), newNS(t)
	must(t, switched.Do(func() error { return card.Emulate(0, 5, host) }))
	o := &offloaded{card: card.Emulated{}}
	link := func(name string) netlink.Link {
		t.Helper()
		l, err := netlink.LinkByName(name)
		must(t, err)
		return l
	}
	free := func(want string) error {
		t.Helper()
		own, err := o.free()
		if want == "" && own != nil || want != "" && (own == nil || own.Attrs().Name != want) {
			t.Errorf("%v is free, want %q; %v", own, want, err)
		}
		return err
	}
	must(t, host.Do(func() error {
		must(t, free("vf0-0"))
		addr, err := netlink.ParseAddr("192.0.2.1/24")
		must(t, err)
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "br0"
		br := &netlink.Bridge{LinkAttrs: attrs}
		must(t, errors.Join(netlink.LinkSetUp(link("vf0-0")), netlink.AddrAdd(link("vf0-1"), addr), netlink.LinkAdd(br), netlink.LinkSetMaster(link("vf0-2"), br)))
		must(t, free("vf0-3"))
		for _, name := range []string{"vf0-3", "vf0-4"} {
			must(t, netlink.LinkSetAlias(link(name), forward.Owner{Network: "n", Container: name, Interface: "eth0"}.Alias()))
		}
		if err := free(""); err == nil || !strings.Contains(err.Error(), "2 VFs have a pod, and the host uses the others: vf0-0 is up, vf0-1 has the address 192.0.2.1/24, vf0-2 has a master") {
			t.Errorf("%v", err)
		}
		must(t, netlink.AddrDel(link("vf0-1"), addr))
		must(t, free("vf0-1"))
		return nil
	}))
}
