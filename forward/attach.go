package forward

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
)

// priority is the priority of our filters among the filters on the same link.
const priority = 0x7467

// hook is a program's place on a link.
type hook struct {
	device  int
	parent  uint32
	program *ebpf.Program
	name    string
}

// hooks are the places of a pod's programs.
func (t *Table) hooks(p Pod) []hook {
	list := []hook{{p.Device, netlink.HANDLE_MIN_INGRESS, t.programs.ForwardFromPod, "forward_from_pod"}}
	if p.Wire != 0 {
		return append(list, hook{p.Wire, netlink.HANDLE_MIN_INGRESS, t.programs.ForwardFromWire, "forward_from_wire"})
	}
	return append(list, hook{p.Device, netlink.HANDLE_MIN_EGRESS, t.programs.ForwardToPod, "forward_to_pod"})
}

// attach attaches the programs of a pod. The one that remembers flows is attached before the
// one that forwards: hooks in reverse.
func (t *Table) attach(p Pod) error {
	list := t.hooks(p)
	for i := len(list) - 1; i >= 0; i-- {
		if err := list[i].attach(); err != nil {
			return err
		}
	}
	return nil
}

// End makes the host deaf at a link whose packets a program in user space takes (AF_PACKET):
// the host would answer and route them as well. The link may not have a bridge.
func (t *Table) End(device int) error {
	return t.end(device).attach()
}

// Ended returns an error if the host listens at a link in spite of End.
func (t *Table) Ended(device int) error { return t.end(device).attached() }

func (t *Table) end(device int) hook {
	return hook{device, netlink.HANDLE_MIN_INGRESS, t.programs.ForwardEnd, "forward_end"}
}

func (h hook) attach() error {
	qdisc := &netlink.GenericQdisc{
		QdiscType:  "clsact",
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: h.device, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT},
	}
	if err := netlink.QdiscAdd(qdisc); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("add qdisc clsact to link %d: %w", h.device, err)
	}
	err := netlink.FilterReplace(&netlink.BpfFilter{
		FilterAttrs:  h.attrs(),
		Fd:           h.program.FD(),
		Name:         h.name,
		DirectAction: true,
	})
	if err != nil {
		return fmt.Errorf("attach %s to link %d: %w", h.name, h.device, err)
	}
	return nil
}

func (h hook) attrs() netlink.FilterAttrs {
	return netlink.FilterAttrs{LinkIndex: h.device, Parent: h.parent, Handle: 1, Priority: priority, Protocol: unix.ETH_P_ALL}
}

// Attached returns which program of a pod is not attached to its link; nil if all are.
func (t *Table) Attached(p Pod) error {
	for _, h := range t.hooks(p) {
		if err := h.attached(); err != nil {
			return err
		}
	}
	return nil
}

func (h hook) attached() error {
	link, err := netlink.LinkByIndex(h.device)
	if err != nil {
		return fmt.Errorf("find link %d: %w", h.device, err)
	}
	filters, err := netns.Dump(func() ([]netlink.Filter, error) { return netlink.FilterList(link, h.parent) })
	if err != nil {
		return fmt.Errorf("list filters of link %d: %w", h.device, err)
	}
	for _, f := range filters {
		if b, ok := f.(*netlink.BpfFilter); ok && b.Name == h.name && b.Priority == priority {
			return nil
		}
	}
	return fmt.Errorf("the program %s is not attached to link %d", h.name, h.device)
}

// Detach removes the programs of a pod from its links. After Remove: without the table's row
// they drop everything.
func (t *Table) Detach(p Pod) error {
	var errs []error
	for _, h := range t.hooks(p) {
		err := netlink.FilterDel(&netlink.BpfFilter{FilterAttrs: h.attrs()})
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, fmt.Errorf("detach %s from link %d: %w", h.name, h.device, err))
		}
	}
	return errors.Join(errs...)
}
