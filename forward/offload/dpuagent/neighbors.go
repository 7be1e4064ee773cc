package dpuagent

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/forward/offload/dpu"
	"github.com/tsugiki/tsugiki/internal/netns"
)

// usable are the states in which the kernel knows a neighbor's MAC address.
const usable = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE | netlink.NUD_PERMANENT

// findNeighbors has the kernel look for the gateway and the other nodes, and gives the switch those
// that are new. The tunnel of the user space datapath asks for a neighbor only when it has a packet
// for it, and loses that and those of the next second.
func (a *Agent) findNeighbors(v vswitchd, nodes []netip.Addr) error {
	wanted := map[netip.Addr]bool{}
	if a.Gateway.IsValid() {
		wanted[a.Gateway] = true
	}
	for _, n := range nodes {
		if a.Address.Contains(n) {
			wanted[n] = true
		}
	}
	link, err := netlink.LinkByName(physical)
	if err != nil {
		return fmt.Errorf("find link %s: %w", physical, err)
	}
	known, err := netns.Dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(link.Attrs().Index, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list neighbors: %w", err)
	}
	asked := map[netip.Addr]bool{}
	for _, n := range known {
		addr, ok := netip.AddrFromSlice(n.IP)
		addr = addr.Unmap()
		if !ok || !wanted[addr] || n.State&usable == 0 || len(n.HardwareAddr) != 6 {
			continue
		}
		// The kernel asks again about one that is stale only when it is used.
		asked[addr] = n.State&netlink.NUD_STALE == 0
		if mac := dpu.MAC(n.HardwareAddr); a.neighbors[addr] != mac {
			a.neighbors[addr] = mac
			if err := a.giveNeighbor(v, addr, mac); err != nil {
				return err
			}
		}
	}
	for addr := range wanted {
		if asked[addr] {
			continue
		}
		err := netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, IP: addr.AsSlice(), Flags: netlink.NTF_USE})
		if err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("ask for neighbor %s: %w", addr, err)
		}
	}
	return nil
}

// giveNeighbors tells a new ovs-vswitchd of all.
func (a *Agent) giveNeighbors(v vswitchd) error {
	for addr, mac := range a.neighbors {
		if err := a.giveNeighbor(v, addr, mac); err != nil {
			return err
		}
	}
	return nil
}

func (a *Agent) giveNeighbor(v vswitchd, addr netip.Addr, mac dpu.MAC) error {
	if a.Datapath != userSpace {
		return nil // the kernel's tunnel asks the kernel
	}
	return a.appctl(v.pid, "tnl/neigh/set", physical, addr.String(), mac.String())
}
