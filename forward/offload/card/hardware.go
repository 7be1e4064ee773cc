package card

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
)

// Hardware is a card with SR-IOV whose kernel driver has representors (switchdev).
type Hardware struct {
	// Sys is where sysfs is mounted, and Kernel changes the card: replaced in tests.
	Sys    string
	Kernel Kernel
}

// Kernel changes cards and links.
type Kernel interface {
	// Switchdev puts a PCI device into the mode switchdev, unless it is in it.
	Switchdev(pci string) error
	// Offload has a link offer its flows to the card (ethtool: hw-tc-offload).
	Offload(link string) error
	Rename(link, name string) error
}

// NewHardware is the machine's own card.
func NewHardware() *Hardware { return &Hardware{Sys: "/sys", Kernel: devlink{}} }

// read returns the text of a file of a link; empty if the driver has none.
func (h *Hardware) read(link, file string) string {
	text, err := os.ReadFile(filepath.Join(h.Sys, "class/net", link, file))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// links lists those of the namespace.
func (h *Hardware) links() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(h.Sys, "class/net"))
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

// address is the PCI address of a link's device (0000:03:00.1); empty if it has none.
func (h *Hardware) address(link string) string {
	to, err := filepath.EvalSymlinks(filepath.Join(h.Sys, "class/net", link, "device"))
	if err != nil || !pciPattern.MatchString(filepath.Base(to)) {
		return ""
	}
	return filepath.Base(to)
}

var pciPattern = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.([0-7])$`)

// VFs lists the links of each device's virtfnN (Documentation/ABI/testing/sysfs-bus-pci). A VF that
// is in another namespace, or has no driver, is left out. The number of a PF is its PCI function.
func (h *Hardware) VFs() ([]VF, error) {
	names, err := h.links()
	if err != nil {
		return nil, err
	}
	var list []VF
	seen := map[string]bool{} // PFs, of which one can have several links
	for _, name := range names {
		pci := h.address(name)
		if pci == "" || seen[pci] {
			continue
		}
		seen[pci] = true
		pf, _ := strconv.Atoi(pciPattern.FindStringSubmatch(pci)[1])
		functions, err := filepath.Glob(filepath.Join(h.Sys, "class/net", name, "device/virtfn*"))
		if err != nil {
			return nil, err
		}
		for _, f := range functions {
			number, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(f), "virtfn"))
			if err != nil {
				continue
			}
			own, err := os.ReadDir(filepath.Join(f, "net"))
			if err == nil && len(own) == 1 && slices.Contains(names, own[0].Name()) {
				list = append(list, VF{pf, number, own[0].Name()})
			}
		}
	}
	return sorted(list), nil
}

// physPortPattern is the name of a VF's port on its card, with the number of its PF, and that of the
// host's controller where the card has one of its own (Documentation/networking/devlink/devlink-port.rst).
var physPortPattern = regexp.MustCompile(`^(?:c\d+)?pf(\d+)vf(\d+)$`)

// Prepare puts the devices with physical ports (p0, p1) into switchdev, and names representors.
func (h *Hardware) Prepare() (hardware bool, err error) {
	names, err := h.links()
	if err != nil {
		return false, err
	}
	for _, name := range names {
		pci := h.address(name)
		if pci == "" || !uplinkPattern.MatchString(h.read(name, "phys_port_name")) {
			continue
		}
		if err := h.Kernel.Switchdev(pci); err != nil {
			return false, fmt.Errorf("put card %s into switchdev: %w", pci, err)
		}
		if err := h.Kernel.Offload(name); err != nil {
			return false, fmt.Errorf("switch offload of %s on: %w", name, err)
		}
		hardware = true
	}
	if !hardware {
		return false, errors.New("no link of this machine is the port of a card with switchdev; to emulate one, use --emulate-vfs")
	}
	return hardware, h.nameRepresentors()
}

var uplinkPattern = regexp.MustCompile(`^p\d+$`)

// nameRepresentors renames those that the driver has named otherwise.
func (h *Hardware) nameRepresentors() error {
	names, err := h.links()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		m := physPortPattern.FindStringSubmatch(h.read(name, "phys_port_name"))
		if m == nil || h.read(name, "phys_switch_id") == "" {
			continue
		}
		pf, _ := strconv.Atoi(m[1])
		vf, _ := strconv.Atoi(m[2])
		want := RepresentorName(pf, vf)
		if name == want {
			continue
		}
		if err := h.Kernel.Rename(name, want); err != nil {
			errs = append(errs, fmt.Errorf("rename representor %s to %s: %w", name, want, err))
		}
	}
	return errors.Join(errs...)
}

// Representors lists them after naming those that have come.
func (h *Hardware) Representors() ([]string, error) {
	if err := h.nameRepresentors(); err != nil {
		return nil, err
	}
	names, err := h.links()
	list := slices.DeleteFunc(names, func(name string) bool { return !IsRepresentor(name) })
	slices.Sort(list)
	return list, err
}

// devlink is the machine's kernel.
type devlink struct{}

func (devlink) Switchdev(pci string) error {
	const mode = "switchdev"
	device, err := netlink.DevLinkGetDeviceByName("pci", pci)
	if err != nil {
		return err
	}
	if device.Attrs.Eswitch.Mode == mode {
		return nil
	}
	return netlink.DevLinkSetEswitchMode(device, mode)
}

// Rename sets the link down for that: kernels before 6.2 rename no link that is up.
func (devlink) Rename(link, name string) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	return errors.Join(netlink.LinkSetDown(l), netlink.LinkSetName(l, name))
}
