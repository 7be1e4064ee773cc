package rig

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/bundle"
	"github.com/tsugiki/tsugiki/internal/cni"
)

// period is the period of CPU quotas, in microseconds. It is the default of the kernel and of all
// engines.
const period = 100_000

// Spec describes a container.
type Spec struct {
	Name    string   // unique in the rig; letters, digits and "-"
	Args    []string // the program and its arguments
	Env     []string // added to PATH
	Network string   // empty: the rig's; also for the next two
	Storage string
	Runtime string
	Mode    string  // of a grafted container: auto, preload or seccomp; empty: the agent's default
	Quota   float64 // CPUs that the container may use; 0: no limit
	CPUs    string  // as in cpuset.cpus; empty: all
	Memory  int64   // bytes; 0: no limit
	Mounts  []Mount
	// Ports lists the TCP ports on which the programs listen, at 0.0.0.0. With Host they are the
	// host's own ports. With Bridge and Graft, ports of the host lead to them.
	Ports []uint16
	// Ready is the line that the program prints when it is up. If Ready is empty, a container with
	// Ports is up when the first port accepts a connection, and any other container when the
	// runtime has returned.
	Ready string
	// Input is the standard input. nil: it is empty. Start does not close it.
	Input *os.File
	// Output is the standard output. nil: Line reads the output. Start does not close it.
	Output *os.File
}

// Mount is a folder or file of the machine that a container sees.
type Mount struct {
	From, To string
	ReadOnly bool
}

// input returns Input for exec.Cmd, which has an interface: a nil *os.File in an interface is not
// nil.
func (s Spec) input() io.Reader {
	if s.Input == nil {
		return nil
	}
	return s.Input
}

var validName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9-]{0,40}$`)

// complete fills in the rig's defaults, and checks the other fields.
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
	s, err := bundle.Spec(root, c.spec.Args...)
	if err != nil {
		return err
	}
	s.Root.Readonly = c.spec.Storage == Shared
	s.Hostname, s.Annotations = c.spec.Name, c.annotations()
	s.Process.Env = append(s.Process.Env, c.spec.Env...)
	s.Linux.CgroupsPath = c.Cgroup()
	switch c.spec.Network {
	case Host: // the container has the runtime's network namespace
	case Bridge:
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: cni.NSPath(c.net)})
	default:
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.NetworkNamespace})
	}
	c.limit(s.Linux.Resources)
	for _, m := range c.spec.Mounts {
		options := []string{"bind", "rw"}
		if m.ReadOnly {
			options[1] = "ro"
		}
		s.Mounts = append(s.Mounts, specs.Mount{Destination: m.To, Type: "bind", Source: m.From, Options: options})
	}
	return bundle.Write(c.dir(), s)
}

// limit sets the container's resource limits.
func (c *Container) limit(res *specs.LinuxResources) {
	res.CPU = &specs.LinuxCPU{Cpus: c.spec.CPUs}
	if c.spec.Quota > 0 {
		quota, p := int64(c.spec.Quota*period), uint64(period)
		res.CPU.Quota, res.CPU.Period = &quota, &p
	}
	if c.spec.Memory > 0 {
		res.Memory = &specs.LinuxMemory{Limit: &c.spec.Memory}
	}
}

// annotations returns the annotations that graft a container onto the host's network.
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
	if c.spec.Mode != "" {
		a[api.AnnotationMode] = c.spec.Mode
	}
	if len(ingress) > 0 {
		a[api.AnnotationIngress] = strings.Join(ingress, ",")
	}
	return a
}
