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

// host is what tells machines apart. Most of it is used by nothing yet.
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
		Lost: "nothing: features are tried, not concluded from the version",
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
		Lost: "nothing: containers are told that there is none",
		Probe: func(*Scratch) (string, error) {
			_, _, errno := unix.RawSyscall(unix.SYS_IO_URING_SETUP, 1, 0, 0) // with nowhere to say how
			if errno == unix.EPERM {
				return "", errors.New("switched off, by kernel.io_uring_disabled or a seccomp filter")
			}
			return "", except(errno, unix.EFAULT)
		},
	},
	{
		Name: "BPF LSM", Since: "5.7",
		Lost:  "nothing today; a listen(2) could be refused where it is now confined to the loopback device",
		Probe: lsm,
	},
	{
		Name: "BTF", Since: "5.4",
		Lost: "shared daemons and the receiving of packets are not charged",
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
		Lost: "nothing today; tsugiki run takes root",
		Probe: func(*Scratch) (string, error) {
			return "", spawnNothing(&syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER})
		},
	},
}
