package cni

import (
	"context"
	"net"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/tsugiki/tsugiki/forward"
)

// Neither the kernel nor udev changes the MAC address of a bridge or a link after ADD.
func TestMACAddressesStay(t *testing.T) {
	r := newRig(t)
	for name, more := range map[string]object{"bridge": {}, "routed": {"routed": true}} {
		n := r.network("mac-"+name, r.plugin(more))
		p := n.pods(1)[0]
		r.do(func() error {
			link, err := netlink.LinkByIndex(r.device(forward.Owner{Network: n.list.Name, Container: p.conf.ContainerID, Interface: "eth0"}))
			if err == nil {
				r.chosen(r.hostPod(), link.Attrs().Name)
			}
			return err
		})
		r.chosen(p, "eth0")
		if name == "bridge" {
			r.chosen(r.hostPod(), "tsugiki0")
			r.lowPort(r.bridgeMAC())
		}
		must(t, n.del(p))
		r.nothing(n)
	}
}

func (r *rig) hostPod() *pod { return &pod{ns: r.host} }

// chosen checks that a link's MAC address is one that a program has chosen (NET_ADDR_SET).
func (r *rig) chosen(in *pod, link string) {
	r.t.Helper()
	cmd := r.command(context.Background(), "nsenter", "--net="+nsPath(in.ns), "unshare", "--mount",
		"sh", "-ec", "mount -t sysfs sysfs /sys; cat /sys/class/net/"+link+"/addr_assign_type")
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "3\n" {
		r.t.Errorf("%s: addr_assign_type %q, %v; want 3", link, out, err)
	}
}

func (r *rig) bridgeMAC() (mac string) {
	r.t.Helper()
	r.do(func() error {
		br, err := netlink.LinkByName("tsugiki0")
		if err == nil {
			mac = br.Attrs().HardwareAddr.String()
		}
		return err
	})
	return mac
}

// lowPort adds a port to the bridge whose MAC address is lower than any that is random.
func (r *rig) lowPort(want string) {
	r.t.Helper()
	r.do(func() error {
		br, err := netlink.LinkByName("tsugiki0")
		if err != nil {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.HardwareAddr, attrs.MasterIndex = "low", net.HardwareAddr{2, 0, 0, 0, 0, 0}, br.Attrs().Index
		low := &netlink.Veth{LinkAttrs: attrs, PeerName: "other"}
		if err := netlink.LinkAdd(low); err != nil {
			return err
		}
		if got := r.bridgeMAC(); got != want {
			r.t.Errorf("the bridge had the MAC address %s, and has %s", want, got)
		}
		return netlink.LinkDel(low)
	})
}
