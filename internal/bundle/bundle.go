// Package bundle makes OCI bundles of the machine's own programs: root file systems with
// the programs' libraries, and config.json with the defaults of Docker.
//
// It owns what is in a bundle. It mounts nothing and calls no runtime. It needs ldd for
// dynamic programs, and busybox (static) for a whole root file system.
package bundle

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// dockerProfile is the seccomp profile of Docker 20.10, which all engines have much
// like it.
//
//go:embed docker.json
var dockerProfile []byte

// capabilities are those of Docker's containers.
var capabilities = []string{
	"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD",
	"CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
}

// Spec is what Docker would give a container without options that runs a program: mounts,
// capabilities, hidden files and the seccomp profile, and a namespace of each kind but the
// network's. The caller may change all of it.
func Spec(root string, args ...string) (*specs.Spec, error) {
	seccomp := &specs.LinuxSeccomp{}
	if err := json.Unmarshal(dockerProfile, seccomp); err != nil {
		return nil, fmt.Errorf("read seccomp profile: %w", err)
	}
	return &specs.Spec{
		Version: "1.0.2",
		Root:    &specs.Root{Path: root},
		Mounts:  mounts(),
		Process: &specs.Process{
			Args: args, Cwd: "/",
			Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
			Capabilities: &specs.LinuxCapabilities{
				Bounding: capabilities, Effective: capabilities, Permitted: capabilities,
			},
		},
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
			},
			Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Access: "rwm"}}},
			Seccomp:   seccomp,
			MaskedPaths: []string{
				"/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
				"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
			},
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}, nil
}

func mounts() []specs.Mount {
	return []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc"},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
	}
}

// Write writes config.json into a bundle's folder, which is there.
func Write(dir string, s *specs.Spec) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600)
}
