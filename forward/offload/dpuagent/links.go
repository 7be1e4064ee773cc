package dpuagent

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/forward/offload/dpu"
)

func linkMTU(name string) (int, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return 0, fmt.Errorf("find link %s: %w", name, err)
	}
	return link.Attrs().MTU, nil
}

// setUpLinks sets the uplink and the bridges' own devices up, and gives br-phy the tunnel's address.
// With the datapath in user space these devices are new at each start of ovs-vswitchd.
func (a *Agent) setUpLinks() error {
	for _, name := range []string{a.Uplink, physical, dpu.Bridge} {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("find link %s: %w", name, err)
		}
		if name == a.Uplink {
			if err := a.deafen(link); err != nil {
				return err
			}
		}
		if name == physical {
			ip := &net.IPNet{IP: a.Address.Addr().AsSlice(), Mask: net.CIDRMask(a.Address.Bits(), a.Address.Addr().BitLen())}
			addr := &netlink.Addr{IPNet: ip, Flags: unix.IFA_F_NODAD}
			if err := netlink.AddrReplace(link, addr); err != nil {
				return fmt.Errorf("add address %s to %s: %w", a.Address, name, err)
			}
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("set link %s up: %w", name, err)
		}
	}
	return nil
}

// setUpRepresentors gives those that have come the uplink's MTU, and sets them up.
func (a *Agent) setUpRepresentors() ([]string, error) {
	names, err := a.Card.Representors()
	if err != nil {
		return nil, err
	}
	mtu, err := linkMTU(a.Uplink)
	if err != nil {
		return nil, err
	}
	var list []string
	for _, name := range names {
		link, err := netlink.LinkByName(name)
		var missing netlink.LinkNotFoundError
		if errors.As(err, &missing) {
			continue // gone since
		}
		if err != nil {
			return nil, fmt.Errorf("find representor %s: %w", name, err)
		}
		list = append(list, name)
		attrs := link.Attrs()
		if attrs.MTU == mtu && attrs.Flags&net.FlagUp != 0 {
			continue
		}
		err = netlink.LinkSetMTU(link, mtu)
		if err == nil {
			err = a.deafen(link)
		}
		if err == nil {
			err = netlink.LinkSetUp(link)
		}
		if err != nil {
			return nil, fmt.Errorf("set representor %s up: %w", name, err)
		}
	}
	return list, nil
}

// deafen keeps the DPU's own kernel from a link of the switch. The kernel says nothing of its own
// there (IPv6 would). In user space, the switch takes packets by AF_PACKET, before this filter, and
// the kernel would answer ARP and route them as well. The kernel's datapath takes packets after the
// filters, and the kernel gets none.
func (a *Agent) deafen(link netlink.Link) error {
	const priority = 1
	name := link.Attrs().Name
	file := "/proc/sys/net/ipv6/conf/" + name + "/disable_ipv6"
	if err := os.WriteFile(file, []byte("1"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("set %s: %w", file, err)
	}
	if a.Datapath != userSpace {
		return nil
	}
	drop, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "deafen", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}, // TC_ACT_SHOT
	})
	if err != nil {
		return fmt.Errorf("load filter: %w", err)
	}
	defer drop.Close()
	qdisc := &netlink.GenericQdisc{
		QdiscType:  "clsact",
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT},
	}
	if err := netlink.QdiscAdd(qdisc); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("add qdisc clsact to %s: %w", name, err)
	}
	filter := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Priority: priority, Protocol: unix.ETH_P_ALL,
		},
		Fd: drop.FD(), Name: "deafen", DirectAction: true,
	}
	if err := netlink.FilterReplace(filter); err != nil {
		return fmt.Errorf("attach filter to %s: %w", name, err)
	}
	return nil
}
