package card

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/internal/netns"
)

// tree makes files, and links where a text begins with ->.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if to, link := strings.CutPrefix(text, "->"); link && err == nil {
			err = os.Symlink(filepath.Join(dir, to), path)
		} else if err == nil {
			err = os.WriteFile(path, []byte(text), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const pf0, pf1, vf3 = "devices/0000:03:00.0", "devices/0000:03:00.1", "devices/0000:03:00.5"

// The VFs of a host's two PFs, of which one VF is in another namespace and one has no driver.
func TestHostVFs(t *testing.T) {
	sys := tree(t, map[string]string{
		"class/net/lo/mtu":                "65536",
		"class/net/ens1f0/device":         "->" + pf0,
		"class/net/ens1f1/device":         "->" + pf1,
		"class/net/again/device":          "->" + pf0, // a second link of the same PF
		"class/net/usb0/device":           "->devices/usb1",
		"devices/usb1/x":                  "",
		pf0 + "/virtfn3":                  "->" + vf3,
		vf3 + "/net/ens1f0v3/mtu":         "1500",
		"class/net/ens1f0v3/device":       "->" + vf3,
		pf0 + "/virtfn10/net/moved/mtu":   "1500",
		pf1 + "/virtfn0/net/ens1f1v0/mtu": "1500",
		"class/net/ens1f1v0/mtu":          "1500",
		pf1 + "/virtfn1/driver_override":  "",
		pf1 + "/virtfnx/net/ens1f1v0/mtu": "1500",
	})
	got, err := (&Hardware{Sys: sys}).VFs()
	if diff := cmp.Diff([]VF{{0, 3, "ens1f0v3"}, {1, 0, "ens1f1v0"}}, got); diff != "" || err != nil {
		t.Errorf("%v:\n%s", err, diff)
	}
}

// asked is a kernel that notes what it is asked for, and renames links of a tree.
type asked struct {
	sys   string
	calls []string
	fail  error
}

func (a *asked) Switchdev(pci string) error {
	a.calls = append(a.calls, "switchdev "+pci)
	return a.fail
}

func (a *asked) Offload(link string) error {
	a.calls = append(a.calls, "offload "+link)
	return nil
}

func (a *asked) Rename(link, name string) error {
	a.calls = append(a.calls, "rename "+link+" "+name)
	return os.Rename(filepath.Join(a.sys, "class/net", link), filepath.Join(a.sys, "class/net", name))
}

// A DPU's uplink is put into switchdev, and representors get their names: of a card whose host has a
// controller of its own, too. Ports of the card itself and of the host's PF keep theirs.
func TestDPURepresentors(t *testing.T) {
	port := func(name, phys string) map[string]string {
		return map[string]string{"class/net/" + name + "/phys_port_name": phys + "\n", "class/net/" + name + "/phys_switch_id": "1234\n", "class/net/" + name + "/device": "->" + pf0}
	}
	files := map[string]string{pf0 + "/vendor": "", "class/net/eth0/mtu": "1500"}
	for name, phys := range map[string]string{"p0": "p0", "pf0hpf": "c1pf0", "eth5": "c1pf0vf0", "eth6": "pf0vf12", "rep1-2": "pf1vf2"} {
		for file, text := range port(name, phys) {
			files[file] = text
		}
	}
	files["class/net/other/phys_port_name"] = "pf0vf7" // of no switch
	sys := tree(t, files)
	kernel := &asked{sys: sys}
	h := &Hardware{Sys: sys, Kernel: kernel}
	hardware, err := h.Prepare()
	if !hardware || err != nil {
		t.Fatal(hardware, err)
	}
	if diff := cmp.Diff([]string{"switchdev 0000:03:00.0", "offload p0", "rename eth5 rep0-0", "rename eth6 rep0-12"}, kernel.calls); diff != "" {
		t.Error(diff)
	}
	got, err := h.Representors()
	if diff := cmp.Diff([]string{"rep0-0", "rep0-12", "rep1-2"}, got); diff != "" || err != nil {
		t.Errorf("%v:\n%s", err, diff)
	}
	kernel.fail = errors.New("busy")
	if _, err := h.Prepare(); err == nil || !strings.Contains(err.Error(), "0000:03:00.0 into switchdev: busy") {
		t.Errorf("%v", err)
	}
	none := &Hardware{Sys: tree(t, map[string]string{"class/net/lo/mtu": ""}), Kernel: kernel}
	if _, err := none.Prepare(); err == nil || !strings.Contains(err.Error(), "--emulate-vfs") {
		t.Errorf("no card: %v", err)
	}
}

func TestNames(t *testing.T) {
	numbers := map[int]string{}
	for pf := range pfs {
		for _, vf := range []int{0, 1, perPF - 1} {
			name := VF{PF: pf, Number: vf}.Representor()
			n := PortNumber(name)
			if other, twice := numbers[n]; twice || n < portFirst || n >= 0xff00 || !IsRepresentor(name) {
				t.Errorf("%s has the number %d, as %s", name, n, other)
			}
			numbers[n] = name
		}
	}
	for _, name := range []string{"rep0", "rep0-", "rep-1", "xrep0-1", "rep0-1x", "rep100-1", "rep0-4096", fmt.Sprintf("rep%d-0", pfs), ""} {
		if n := PortNumber(name); n != 0 {
			t.Errorf("%q has the number %d", name, n)
		}
	}
}

// An emulated card has its VFs on the host and their representors on the DPU.
func TestEmulated(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skip: needs root")
	}
	host, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	own, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	for range 2 { // the second time there is nothing to do
		err = own.Do(func() error {
			if err := Emulate(1, 2, host); err != nil {
				return err
			}
			list, err := Emulated{}.Representors()
			if diff := cmp.Diff([]string{"rep1-0", "rep1-1"}, list); diff != "" {
				t.Error(diff)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	err = host.Do(func() error {
		list, err := Emulated{}.VFs()
		if diff := cmp.Diff([]VF{{1, 0, "vf1-0"}, {1, 1, "vf1-1"}}, list); diff != "" {
			t.Error(diff)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
