package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/cgroup"
)

// Feature is a feature of the machine that Tsugiki uses or could use.
type Feature struct {
	Name     string
	Since    string // the first kernel that has it, if configured; empty: not the kernel's
	Required bool   // without it no container is started
	Lost     string // without it
	// Probe tries it. It returns what else there is to say of it, or why it is not
	// there. An errno by which the kernel says that it knows no such thing
	// becomes an UnsupportedError.
	Probe func(*Scratch) (detail string, err error)

	early bool // cheap and without a trace: Require looks at it; its Probe gets nil
}

// features are all features of the kernel, in the order in which they are tried.
var features = slices.Concat(capabilities(), limits(), calls, cgroups, programs(), maps(), helpers(), host)

// Features are all that the kernel has to have, or could.
func Features() []Feature { return slices.Clone(features) }

// Result is the result of a trial of a Feature.
type Result struct {
	Name     string `json:"name"`
	Present  *bool  `json:"present"` // nil: unknown, and Detail has the reason
	Required bool   `json:"required"`
	Lost     string `json:"lost"`
	Detail   string `json:"detail"`
}

// errUntold is wrapped by errors of probes that could not find out whether the feature is there.
var errUntold = errors.New("cannot be told")

// Examine tries features.
func Examine(list []Feature) (results []Result, err error) {
	s := &Scratch{}
	defer func() { err = errors.Join(err, s.remove()) }()
	for _, f := range list {
		detail, err := f.try(s)
		r := Result{Name: f.Name, Required: f.Required, Lost: f.Lost, Detail: detail}
		if err != nil {
			r.Detail = err.Error()
		}
		if !errors.Is(err, errUntold) {
			present := err == nil
			r.Present = &present
		}
		results = append(results, r)
	}
	return results, nil
}

func (f *Feature) try(s *Scratch) (string, error) {
	detail, err := f.Probe(s)
	var errno unix.Errno
	switch {
	case err == nil, errors.Is(err, errUntold), errors.Is(err, ErrPrivilege):
	case errors.Is(err, fs.ErrPermission) && !privileged():
		err = Untold("needs root to tell")
	case errors.Is(err, fs.ErrPermission):
		err = fmt.Errorf("%w; a seccomp filter, a security module or a user namespace keeps root from it", err)
	case f.Since != "" && (errors.Is(err, ebpf.ErrNotSupported) || errors.As(err, &errno) && slices.Contains(unknown, errno)):
		err = &UnsupportedError{f.Name, f.Since}
	}
	return detail, err
}

// unknown are the errnos of kernels that do not have a feature.
var unknown = []unix.Errno{
	unix.ENOSYS, unix.EINVAL, unix.ENOPROTOOPT, unix.EOPNOTSUPP, unix.EAFNOSUPPORT, unix.ENOTTY, unix.E2BIG, unix.ENOENT,
}

// Untold returns the error of a probe that could not find out whether the feature is there.
func Untold(why string) error { return untoldError(why) }

type untoldError string

func (e untoldError) Error() string { return string(e) }

func (e untoldError) Is(target error) bool { return target == errUntold }

// Scratch has resources that probes share. Each is made at its first use.
type Scratch struct {
	group *cgroup.Group
	err   error
}

// Cgroup is an empty cgroup where those of containers are made.
func (s *Scratch) Cgroup() (*cgroup.Group, error) {
	if s.group == nil && s.err == nil {
		var own string
		if own, s.err = cgroup.Own(); s.err == nil {
			s.group, s.err = cgroup.Create(own, fmt.Sprintf("tsugiki-doctor-%d-%d", os.Getpid(), time.Now().UnixNano()))
		}
	}
	return s.group, s.err
}

// Trial is Cgroup for probes of something else.
func (s *Scratch) Trial() (*cgroup.Group, error) {
	g, err := s.Cgroup()
	if err != nil {
		return nil, Untold("unknown, because there is no cgroup to try it in")
	}
	return g, nil
}

func (s *Scratch) remove() error {
	if s.group == nil {
		return nil
	}
	return s.group.Remove()
}
