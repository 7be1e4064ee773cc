package nri

import (
	"errors"

	"github.com/containerd/nri/pkg/api"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// errNoProfile says that a plugin would replace a profile that it has not seen.
var errNoProfile = errors.New("this version of containerd does not say which seccomp profile the container has; give the pod the RuntimeClass tsugiki")

// errErrno says that containerd would lose a part of the profile: it copies all of a plugin's profile but
// defaultErrnoRet (AdjustSeccompPolicy of NRI 0.12.3), and calls would end with EPERM.
var errErrno = errors.New("NRI loses defaultErrnoRet of the container's seccomp profile; leave it out, or give the pod the RuntimeClass tsugiki")

// profileOf returns the seccomp profile that is in force for a container; nil if that is none.
func profileOf(c *api.Container) (*specs.LinuxSeccomp, error) {
	l := c.GetLinux()
	if p := l.GetSeccompPolicy(); p != nil {
		if e := p.GetDefaultErrno(); e != nil && e.GetValue() != uint32(unix.EPERM) {
			return nil, errErrno
		}
		return toOCI(p), nil
	}
	if p := l.GetSeccompProfile(); p == nil || p.GetProfileType() != api.SecurityProfile_UNCONFINED {
		return nil, errNoProfile
	}
	return nil, nil
}

// toOCI is the inverse of api.FromOCILinuxSeccomp, which NRI does not have.
func toOCI(p *api.LinuxSeccomp) *specs.LinuxSeccomp {
	o := &specs.LinuxSeccomp{
		DefaultAction: specs.LinuxSeccompAction(p.GetDefaultAction()),
		ListenerPath:  p.GetListenerPath(), ListenerMetadata: p.GetListenerMetadata(),
		Syscalls: api.ToOCILinuxSyscalls(p.GetSyscalls()),
	}
	if e := p.GetDefaultErrno(); e != nil {
		errno := uint(e.GetValue())
		o.DefaultErrnoRet = &errno
	}
	for _, a := range p.GetArchitectures() {
		o.Architectures = append(o.Architectures, specs.Arch(a))
	}
	for _, f := range p.GetFlags() {
		o.Flags = append(o.Flags, specs.LinuxSeccompFlag(f))
	}
	return o
}
