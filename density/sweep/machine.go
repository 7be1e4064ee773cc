package sweep

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/density/result"
	"github.com/tsugiki/tsugiki/density/rig"
)

// describe returns the description of the machine.
func describe(ctx context.Context, r *rig.Rig, runtimes []string) (result.Machine, error) {
	m := result.Machine{Cgroups: r.Cgroups(), Tools: map[string]string{}}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return m, err
	}
	m.Kernel = unix.ByteSliceToString(name.Release[:])
	var cpus unix.CPUSet
	if err := unix.SchedGetaffinity(0, &cpus); err != nil {
		return m, err
	}
	m.Cores = cpus.Count()
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return m, err
	}
	m.MemoryBytes = int64(info.Totalram) * int64(info.Unit)
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return m, err
	}
	if _, err := fmt.Sscan(string(load), &m.Load); err != nil {
		return m, err
	}
	// Unknown facts are left out.
	m.CPU = value("/proc/cpuinfo", ":", "model name")
	m.Distribution = strings.Trim(value("/etc/os-release", "=", "PRETTY_NAME"), `"`)
	if strings.Contains(value("/proc/cpuinfo", ":", "flags")+" ", " hypervisor ") {
		m.Virtualization = "hypervisor"
	}
	m.FileSystem = fileSystem(r.Dir())
	// This runs in the rig's namespace that stands for the host.
	control, err := r.Host(ctx, "cat", "/proc/sys/net/ipv4/tcp_congestion_control")
	if err != nil {
		return m, err
	}
	m.CongestionControl = strings.TrimSpace(string(control))
	var versions []string
	for _, runtime := range runtimes {
		out, err := r.Host(ctx, runtime, "--version")
		if err != nil {
			return m, err
		}
		version, _, _ := strings.Cut(string(out), "\n")
		versions = append(versions, version)
	}
	m.Runtime = strings.Join(versions, ", ")
	return m, nil
}

// value returns the value of a name in a file of names and values.
func value(file, between, name string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), between)
		if strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// fileSystem returns the name of a folder's file system.
func fileSystem(dir string) string {
	var fs unix.Statfs_t
	if unix.Statfs(dir, &fs) != nil {
		return ""
	}
	switch int64(fs.Type) {
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.TMPFS_MAGIC:
		return "tmpfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlayfs"
	}
	return fmt.Sprintf("%#x", fs.Type)
}
