package kernel

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// host has properties of the machine. Most of them have no use yet.
var host = []Feature{
	{
		Name: "architecture", Required: true,
		Lost: "there are seccomp filters for x86-64 and arm64 only",
		Probe: func(*Scratch) (string, error) {
			if !slices.Contains([]string{"amd64", "arm64"}, runtime.GOARCH) {
				return "", fmt.Errorf("this is %s", runtime.GOARCH)
			}
			return runtime.GOARCH, nil
		},
	},
	{
		Name: "kernel",
		Lost: "nothing, because features are tried and not derived from the version",
		Probe: func(*Scratch) (string, error) {
			var u unix.Utsname
			if err := unix.Uname(&u); err != nil {
				return "", err
			}
			return unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:]), nil
		},
	},
	{
		Name: "io_uring", Since: "5.1",
		Lost: "nothing, because io_uring fails with ENOSYS in containers",
		Probe: func(*Scratch) (string, error) {
			_, _, errno := unix.RawSyscall(unix.SYS_IO_URING_SETUP, 1, 0, 0) // without parameters: EFAULT
			if errno == unix.EPERM {
				return "", errors.New("switched off by kernel.io_uring_disabled or a seccomp filter")
			}
			return "", except(errno, unix.EFAULT)
		},
	},
	{
		Name: "BPF LSM", Since: "5.7",
		Lost:  "nothing today; with it, listen(2) could be refused where it is now confined to the loopback device",
		Probe: lsm,
	},
	{
		Name: "BTF", Since: "5.4",
		Lost: "CPU time of shared daemons and of receiving packets is not charged",
		Probe: func(*Scratch) (string, error) {
			f, err := os.Open("/sys/kernel/btf/vmlinux")
			if err == nil {
				f.Close()
			}
			return "", err
		},
	},
	{
		Name: "user namespaces", Since: "3.8",
		Lost: "nothing today; tsugiki run needs root",
		Probe: func(*Scratch) (string, error) {
			return "", spawnNothing(&syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER})
		},
	},
}
