package rig

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/cni"
)

// dockerProfile is the seccomp profile of Docker 20.10, which all engines have much
// like it. All containers get it.
//
//go:embed docker.json
var dockerProfile []byte

// capabilities are those of Docker's containers.
var capabilities = []string{
	"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD",
	"CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
}

// period is that of CPU quotas, in microseconds: the kernel's and all engines' default.
const period = 100_000

// Spec says what a container is to be.
type Spec struct {
	Name    string   // unique in the rig while it is there; letters, digits and "-"
	Args    []string // of its program
	Env     []string // added to PATH
	Network string   // the rig's if empty, and so the next two
	Storage string
	Runtime string
	Quota   float64 // CPUs that it may use; 0: no limit
	CPUs    string  // as in cpuset.cpus; empty: all
	Memory  int64   // bytes; 0: no limit
	Mounts  []Mount
	// Ports are the TCP ports that its programs listen on, at 0.0.0.0. With Host they
	// are the host's own; with Bridge and Graft ports of the host's lead to them.
	Ports []uint16
	// Ready is a line that the program prints when it is up. Without it, a container
	// with Ports is up when the first of them accepts a connection, and others when the
	// runtime has returned.
	Ready string
	// Output is where standard output goes; nil: to Line. Start does not close it.
	Output *os.File
}

// Mount is a folder or file of the machine's that a container sees.
type Mount struct {
	From, To string
	ReadOnly bool
}

var validName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9-]{0,40}$`)

// complete fills in what the rig decides, and checks the rest.
func (r *Rig) complete(s Spec) (Spec, error) {
	for _, d := range []struct {
		of  *string
		rig string
	}{{&s.Network, r.Network}, {&s.Storage, r.Storage}, {&s.Runtime, r.Runtime}} {
		if *d.of == "" {
			*d.of = d.rig
		}
	}
	if !validName.MatchString(s.Name) {
		return s, fmt.Errorf("container %q: a name is letters, digits and \"-\", at most 41", s.Name)
	}
	if len(s.Args) == 0 {
		return s, fmt.Errorf("container %s has no program", s.Name)
	}
	switch s.Network {
	case Bridge, Host, Graft, None:
		return s, nil
	}
	return s, fmt.Errorf("container %s: network %q is none of %s, %s, %s and %s", s.Name, s.Network, Bridge, Host, Graft, None)
}

// writeBundle writes the container's config.json.
func (c *Container) writeBundle(root string) error {
	s, err := c.runtimeSpec(root)
	if err != nil {
		return err
	}
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.dir(), "config.json"), data, 0o600)
}

func (c *Container) runtimeSpec(root string) (*specs.Spec, error) {
	seccomp := &specs.LinuxSeccomp{}
	if err := json.Unmarshal(dockerProfile, seccomp); err != nil {
		return nil, fmt.Errorf("read seccomp profile: %w", err)
	}
	return &specs.Spec{
		Version:     "1.0.2",
		Root:        &specs.Root{Path: root},
		Hostname:    c.spec.Name,
		Annotations: c.annotations(),
		Mounts:      c.mounts(),
		Process: &specs.Process{
			Args: c.spec.Args, Cwd: "/",
			Env: append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, c.spec.Env...),
			Capabilities: &specs.LinuxCapabilities{
				Bounding: capabilities, Effective: capabilities, Permitted: capabilities,
			},
		},
		Linux: &specs.Linux{
			CgroupsPath: c.Cgroup(),
			Namespaces:  c.namespaces(),
			Resources:   c.resources(),
			Seccomp:     seccomp,
			MaskedPaths: []string{
				"/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
				"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
			},
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}, nil
}

func (c *Container) namespaces() []specs.LinuxNamespace {
	list := []specs.LinuxNamespace{
		{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
	}
	switch c.spec.Network {
	case Host: // that of the runtime
	case Bridge:
		list = append(list, specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: cni.NSPath(c.net)})
	default:
		list = append(list, specs.LinuxNamespace{Type: specs.NetworkNamespace})
	}
	return list
}

func (c *Container) resources() *specs.LinuxResources {
	res := &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Access: "rwm"}}, CPU: &specs.LinuxCPU{Cpus: c.spec.CPUs}}
	if c.spec.Quota > 0 {
		quota, p := int64(c.spec.Quota*period), uint64(period)
		res.CPU.Quota, res.CPU.Period = &quota, &p
	}
	if c.spec.Memory > 0 {
		res.Memory = &specs.LinuxMemory{Limit: &c.spec.Memory}
	}
	return res
}

func (c *Container) mounts() []specs.Mount {
	list := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc"},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
	}
	for _, m := range c.spec.Mounts {
		options := []string{"bind", "rw"}
		if m.ReadOnly {
			options[1] = "ro"
		}
		list = append(list, specs.Mount{Destination: m.To, Type: "bind", Source: m.From, Options: options})
	}
	return list
}

// annotations give a grafted container the host's network.
func (c *Container) annotations() map[string]string {
	if c.spec.Network != Graft {
		return nil
	}
	var ingress []string
	for _, port := range c.spec.Ports {
		ingress = append(ingress, fmt.Sprintf("0.0.0.0:%d=%s:%d", port, hostAddr.Addr(), c.hostPorts[port]))
	}
	a := map[string]string{
		api.AnnotationName:   c.spec.Name,
		api.AnnotationEgress: "0.0.0.0/0=" + hostAddr.Addr().String(),
	}
	if len(ingress) > 0 {
		a[api.AnnotationIngress] = strings.Join(ingress, ",")
	}
	return a
}
