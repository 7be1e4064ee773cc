// Package machine boots virtual machines for tests and benches: User-Mode Linux, and QEMU that
// translates the guest's instructions (TCG). Neither needs a processor's support.
//
// It owns a guest's file system, which is an initramfs with busybox, the guest's modules, and the
// VMM's command line. What a guest does is in a script of the caller's. It makes no TAP device.
// The guest is in the network namespace in which the caller starts it.
//
// It needs x86-64 and the Debian package busybox-static, and for User-Mode Linux the package
// user-mode-linux and a C compiler, for QEMU the package qemu-system-x86 and a kernel of Debian's
// (scripts/kernels/fetch.sh). A guest that has a TAP device needs CAP_NET_ADMIN.
package machine

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Accelerator is how a guest's instructions are executed. Figures are comparable within one alone.
type Accelerator string

// The accelerators.
const (
	UML Accelerator = "uml"
	TCG Accelerator = "tcg"
)

// Needs says what is missing; the error is a NeedsError.
func (a Accelerator) Needs() error {
	if a == UML {
		if err := testkit.Programs("linux.uml", "busybox"); err != nil {
			return &testkit.NeedsError{What: "User-Mode Linux (Debian packages user-mode-linux and busybox-static, x86-64)"}
		}
		return nil
	}
	if err := testkit.Programs("qemu-system-x86_64", "busybox"); err != nil {
		return &testkit.NeedsError{What: "QEMU (Debian packages qemu-system-x86 and busybox-static)"}
	}
	return nil
}

// modules are those of the kernel that give a guest vsock, the device of its datagrams and a network card,
// in the order in which they are loaded. The kernel has all others built in.
var modules = map[Accelerator][]string{
	UML: {"net/vmw_vsock/vsock", "net/vmw_vsock/vmw_vsock_virtio_transport_common", "net/vmw_vsock/vmw_vsock_virtio_transport", "drivers/net/tun"},
	TCG: {
		"drivers/virtio/virtio_ring", "drivers/virtio/virtio", "drivers/virtio/virtio_pci_modern_dev", "drivers/virtio/virtio_pci_legacy_dev",
		"drivers/virtio/virtio_pci", "net/vmw_vsock/vsock", "net/vmw_vsock/vmw_vsock_virtio_transport_common", "net/vmw_vsock/vmw_vsock_virtio_transport",
		"net/core/failover", "drivers/net/net_failover", "drivers/net/virtio_net", "drivers/net/tun",
	},
}

// ipv6 are the modules of IPv6, where that is not built in.
var ipv6 = map[Accelerator][]string{UML: {"lib/crc-ccitt", "net/ipv6/ipv6"}}

// Modules finds the modules of a kernel: the folder of scripts/kernels/fetch.sh, or "" for User-Mode
// Linux, which has its own. withIPv6 has those of IPv6, too; without them, the guest may have IPv6 all
// the same.
func (a Accelerator) Modules(kernel string, withIPv6 bool) (paths []string, err error) {
	folder := "/usr/lib/uml/modules"
	if a == TCG {
		folder = filepath.Join(kernel, "lib/modules")
	}
	names := modules[a]
	if withIPv6 {
		names = slices.Concat(names, ipv6[a])
	}
	for _, name := range names {
		found, err := filepath.Glob(filepath.Join(folder, "*/kernel", name+".ko"))
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			return nil, fmt.Errorf("find modules of the guest's kernel: no %s.ko below %s", name, folder)
		}
		paths = append(paths, found[0])
	}
	return paths, nil
}

//go:embed src/xstate.c
var source embed.FS

// Preload compiles what User-Mode Linux needs on a CPU with AMX (src/xstate.c) into a folder, and returns
// the path of the library.
func Preload(ctx context.Context, dir string) (string, error) {
	const name = "xstate"
	text, err := source.ReadFile("src/" + name + ".c")
	from, library := filepath.Join(dir, name+".c"), filepath.Join(dir, name+".so")
	if err == nil {
		err = os.WriteFile(from, text, 0o600)
	}
	if err != nil {
		return "", fmt.Errorf("compile %s: %w", name, err)
	}
	out, err := exec.CommandContext(ctx, "cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, from).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("compile %s: %w: %s", name, err, out)
	}
	return library, nil
}

// Machine is a virtual machine of one processor.
type Machine struct {
	Accelerator Accelerator
	Dir         string // of the machine's own files
	Initramfs   string // Root.Write has written it
	Kernel      string // for TCG: the folder of scripts/kernels/fetch.sh
	Preload     string // for UML: the library of Preload
	Vsock       string // path at which a vhost-user-vsock device listens; empty: the guest has none
	TAP         string // a TAP device, which is the network card's other end; empty: none
	// NAT gives a TCG guest a network card behind address translation in user space (QEMU's libslirp).
	// Each forward is a port of the host's for one of the guest's, such as
	// "tcp:198.51.100.1:8080-:80".
	NAT      bool
	Forwards []string
	Memory   int // MiB; 0: 256
	// By are words that precede the VMM's command, such as those of a shell that enters a cgroup.
	By []string
	// Keyboard says that standard input is the guest's console, too.
	Keyboard bool
}

// memoryMiB is a guest's memory, unless it needs another.
const memoryMiB = 256

// Command is the VMM, in a network namespace. Its standard output is the guest's console. It ends when
// the guest powers off; the end of ctx kills it.
func (m *Machine) Command(ctx context.Context, ns *testkit.Namespace) (*testkit.Cmd, error) {
	if m.NAT && m.Accelerator == UML {
		return nil, errors.New("boot guest: User-Mode Linux has no address translation")
	}
	argv := m.uml()
	if m.Accelerator == TCG {
		khz, err := tscKHz()
		if err != nil {
			return nil, err
		}
		argv = m.qemu(khz)
	}
	argv = slices.Concat(m.By, argv)
	vmm := ns.Command(ctx, argv[0], argv[1:]...)
	if m.Accelerator == UML {
		// The guest's memory is a file in TMPDIR, which has to let programs be executed.
		vmm.Env = append(os.Environ(), "TMPDIR=/dev/shm", "LD_PRELOAD="+m.Preload)
	}
	vmm.SysProcAttr.Setpgid = true // UML has helper processes
	vmm.Cancel = func() error { return unix.Kill(-vmm.Process.Pid, syscall.SIGKILL) }
	return vmm, nil
}

func (m *Machine) memory() int {
	if m.Memory == 0 {
		return memoryMiB
	}
	return m.Memory
}

func (m *Machine) uml() []string {
	console := "con0=null,fd:1"
	if m.Keyboard {
		console = "con0=fd:0,fd:1"
	}
	argv := []string{
		"linux.uml", fmt.Sprintf("mem=%dM", m.memory()), "initrd=" + m.Initramfs, "con=null", console, "uml_dir=" + m.Dir, "umid=guest",
		"rdinit=/init", "quiet", "panic=-1",
	}
	if m.Vsock != "" {
		argv = append(argv, "virtio_uml.device="+m.Vsock+":19")
	}
	if m.TAP != "" {
		argv = append(argv, "vec0:transport=tap,ifname="+m.TAP+",depth=128,gro=1")
	}
	return argv
}

// qemu has no clock that the kernel trusts, unless it is told to: each look at the time would be an access
// to a device. The clock's rate is in kHz.
func (m *Machine) qemu(khz uint64) []string {
	argv := []string{
		"qemu-system-x86_64", "-M", "q35,memory-backend=mem", "-accel", "tcg", "-cpu", "max", "-m", fmt.Sprint(m.memory()),
		"-object", fmt.Sprintf("memory-backend-memfd,id=mem,size=%dM,share=on", m.memory()), "-nodefaults", "-display", "none", "-no-reboot",
		"-serial", "stdio", "-kernel", filepath.Join(m.Kernel, "vmlinuz"), "-initrd", m.Initramfs,
		"-append", fmt.Sprintf("console=ttyS0 rdinit=/init quiet panic=-1 no_timer_check tsc=reliable tsc_early_khz=%d", khz),
	}
	if m.Vsock != "" {
		argv = append(argv, "-chardev", "socket,id=vsock,path="+m.Vsock, "-device", "vhost-user-vsock-pci,chardev=vsock")
	}
	switch {
	case m.TAP != "":
		argv = append(argv, "-netdev", "tap,id=card,script=no,downscript=no,ifname="+m.TAP, "-device", "virtio-net-pci,netdev=card")
	case m.NAT:
		card := []string{"user,id=card"}
		for _, forward := range m.Forwards {
			card = append(card, "hostfwd="+forward)
		}
		argv = append(argv, "-netdev", strings.Join(card, ","), "-device", "virtio-net-pci,netdev=card")
	}
	return argv
}
