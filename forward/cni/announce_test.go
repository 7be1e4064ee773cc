package cni

import (
	"fmt"
	"net"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Neighbors that know another MAC address of a new pod's addresses learn the pod's, before they or
// the pod send anything.
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
		var eth0 netlink.Link
		must(t, neighbor.ns.Do(func() (err error) {
			eth0, err = netlink.LinkByName("eth0")
			for _, ip := range result.IPs {
				if err == nil {
					err = netlink.NeighSet(&netlink.Neigh{
						LinkIndex: eth0.Attrs().Index, State: netlink.NUD_REACHABLE, IP: ip.Address.IP, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 9},
					})
				}
			}
			return err
		}))
		heir := n.newPod("heir")
		_, err = n.add(heir)
		must(t, err)
		want := macOf(t, heir).String()
		testkit.Eventually(t, func() error {
			return neighbor.ns.Do(func() error {
				list, err := netlink.NeighList(eth0.Attrs().Index, netlink.FAMILY_ALL)
				for _, entry := range list {
					for _, ip := range result.IPs {
						if entry.IP.Equal(ip.Address.IP) && entry.HardwareAddr.String() != want {
							err = fmt.Errorf("%s is at %s, want %s", entry.IP, entry.HardwareAddr, want)
						}
					}
				}
				return err
			})
		})
		must(t, n.del(heir))
		must(t, n.del(neighbor))
		r.nothing(n)
	})
}
