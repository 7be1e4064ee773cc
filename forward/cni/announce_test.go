package cni

import (
	"fmt"
	"net"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Neighbors that know another MAC address of a new pod's addresses learn the pod's, before they or
// the pod send anything; or they reach the pod with the other one.
func TestNewPodIsAnnounced(t *testing.T) {
	eachMode(t, func(t *testing.T, r *rig, m mode) {
		if m.chained || m.name == "routed" { // in which the host is the only neighbor
			return
		}
		two := merged(r.ipam(), object{"ranges": [][]object{
			{{"subnet": "198.51.100.0/24", "rangeStart": "198.51.100.10", "rangeEnd": "198.51.100.11"}},
			{{"subnet": "2001:db8:77::/64", "rangeStart": "2001:db8:77::10", "rangeEnd": "2001:db8:77::11"}},
		}})
		n := r.network("told", m.plugins(r, object{"ipam": two})...)
		neighbor := n.pods(1)[0]
		p := n.newPod("next")
		result, err := n.add(p) // whose addresses are known then
		must(t, err)
		must(t, n.del(p))
		state := netlink.NUD_REACHABLE
		if m.byAddress {
			state = netlink.NUD_PERMANENT
		}
		var eth0 netlink.Link
		must(t, neighbor.ns.Do(func() (err error) {
			eth0, err = netlink.LinkByName("eth0")
			for _, ip := range result.IPs {
				if err == nil {
					err = netlink.NeighSet(&netlink.Neigh{
						LinkIndex: eth0.Attrs().Index, State: state, IP: ip.Address.IP, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 9},
					})
				}
			}
			return err
		}))
		heir := n.newPod("heir")
		_, err = n.add(heir)
		must(t, err)
		if m.byAddress {
			r.echo(neighbor, heir)
		} else {
			r.learns(neighbor, heir)
		}
		must(t, n.del(heir))
		must(t, n.del(neighbor))
		r.nothing(n)
	})
}

// learns waits until a pod knows the MAC address of another one.
func (r *rig) learns(p, other *pod) {
	r.t.Helper()
	want := macOf(r.t, other).String()
	testkit.Eventually(r.t, func() error {
		return p.ns.Do(func() error {
			eth0, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			list, err := netlink.NeighList(eth0.Attrs().Index, netlink.FAMILY_ALL)
			for _, entry := range list {
				if slices.Contains(other.addrs, addrOf(entry.IP)) && entry.HardwareAddr.String() != want {
					err = fmt.Errorf("%s is at %s, want %s", entry.IP, entry.HardwareAddr, want)
				}
			}
			return err
		})
	})
}
