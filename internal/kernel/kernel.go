// Package kernel finds out which kernel features this machine has. Its errors name the missing
// feature and what to do.
//
// It tries each feature, by a system call or a small program, and does not look at the version.
// It removes what it makes before it returns. It needs no privilege of its own: a feature that
// only a privileged process can try is unknown to others.
package kernel

import (
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"
)

// ErrNotSupported is wrapped by every UnsupportedError.
var ErrNotSupported = errors.New("not supported by this kernel")

// UnsupportedError means that a kernel feature is missing.
type UnsupportedError struct {
	Feature    string
	MinVersion string // the first kernel that has it, if configured
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%s is %s; it needs Linux %s or later, built with it", e.Feature, ErrNotSupported, e.MinVersion)
}

// Unwrap returns ErrNotSupported.
func (e *UnsupportedError) Unwrap() error { return ErrNotSupported }

// ErrPrivilege means that the caller lacks a privilege that grafting needs.
var ErrPrivilege = errors.New("not enough privilege")

// ErrFiles means that the limit of open files is too low.
var ErrFiles = errors.New("too many open files")

// Require returns an error if containers cannot be grafted here. It checks only the features that
// it can try at once and without leaving anything. The start of a container reports the others.
func Require() error {
	for _, f := range features {
		if !f.early {
			continue
		}
		_, err := f.try(nil)
		switch {
		case errors.Is(err, ErrNotSupported), errors.Is(err, ErrPrivilege), errors.Is(err, ErrFiles):
			return err
		case err != nil:
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return nil
}

// needed lists the capabilities that grafting needs, with their purpose.
var needed = []struct {
	bit  int
	name string
	what string
}{
	{unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN", "network namespaces and seccomp filters"},
	{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN", "cgroup BPF programs"},
	{unix.CAP_SYS_PTRACE, "CAP_SYS_PTRACE", "the program's sockets"},
	{unix.CAP_SETPCAP, "CAP_SETPCAP", "limiting the program's capabilities"},
}

func capabilities() []Feature {
	var list []Feature
	for _, c := range needed {
		list = append(list, Feature{
			Name: c.name, Required: true, Lost: c.what, early: true,
			Probe: func(*Scratch) (string, error) {
				have, err := effective()
				if err == nil && have&(1<<c.bit) == 0 {
					err = fmt.Errorf("%w: %s is needed for %s; run it as root", ErrPrivilege, c.name, c.what)
				}
				return "", err
			},
		})
	}
	return list
}

// privileged reports whether this thread has all needed capabilities in its user namespace.
func privileged() bool {
	have, err := effective()
	for _, c := range needed {
		if err != nil || have&(1<<c.bit) == 0 {
			return false
		}
	}
	return true
}

// effective returns the effective capabilities of this thread.
func effective() (uint64, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var words [2]unix.CapUserData
	if err := unix.Capget(&header, &words[0]); err != nil {
		return 0, fmt.Errorf("read capabilities: %w", err)
	}
	return uint64(words[1].Effective)<<32 | uint64(words[0].Effective), nil
}

const (
	// filesMin is the number of files that this process may have open at once for a container, with
	// some room. At the limit the kernel's answers no longer tell what is missing.
	filesMin = 80
	// filesPlenty is what Linux gives programs by default.
	filesPlenty = 1024
)

func limits() []Feature {
	return []Feature{
		{
			Name: "RLIMIT_NOFILE", Required: true, early: true,
			Lost: "containers cannot be started",
			Probe: func(*Scratch) (string, error) {
				limit, err := filesLimit()
				if err == nil && limit.Cur < filesMin {
					err = fmt.Errorf("%w: the limit is %d, at least %d are needed; raise it with ulimit -n", ErrFiles, limit.Cur, filesMin)
				}
				return strconv.FormatUint(limit.Cur, 10), err
			},
		},
		{
			Name: "ample RLIMIT_NOFILE",
			Lost: "dynamic programs get fewer sockets in advance, one for 32 files, and need more round trips",
			Probe: func(*Scratch) (string, error) {
				limit, err := filesLimit()
				if err == nil && limit.Cur < filesPlenty {
					err = fmt.Errorf("the limit is %d, less than %d; raise it with ulimit -n", limit.Cur, filesPlenty)
				}
				return "", err
			},
		},
	}
}

// filesLimit returns the limit of this process. Go has raised the soft limit to the hard one.
func filesLimit() (unix.Rlimit, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return limit, fmt.Errorf("read the limit of open files: %w", err)
	}
	return limit, nil
}
