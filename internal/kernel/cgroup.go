package kernel

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/cgroup"
)

var cgroups = []Feature{
	{
		Name: "cgroup v2", Required: true,
		Lost: "containers have no cgroup: rules cannot be enforced, and containers cannot be ended",
		Probe: func(*Scratch) (string, error) {
			own, err := cgroup.Own()
			if err != nil {
				return "", err
			}
			return layout() + ", " + own, nil
		},
	},
	{
		Name: "writable cgroup v2", Required: true,
		Lost: "containers have no cgroup: rules cannot be enforced, and containers cannot be ended",
		Probe: func(s *Scratch) (string, error) {
			_, err := s.Cgroup()
			switch {
			case errors.Is(err, cgroup.ErrNoV2):
				err = Untold("unknown, because no cgroup v2 is mounted")
			case errors.Is(err, fs.ErrNotExist):
				err = nil // the cgroup was made, and was removed because it has no cgroup.kill
			}
			return "", err
		},
	},
	{
		Name: "cgroup.kill", Since: "5.14", Required: true,
		Lost: "processes of a container may survive its end",
		Probe: func(s *Scratch) (string, error) {
			if _, err := s.Cgroup(); errors.Is(err, fs.ErrNotExist) {
				return "", unix.ENOENT
			}
			g, err := s.Trial()
			if err != nil {
				return "", err
			}
			return "", g.Kill() // nobody is in it
		},
	},
	{
		Name: "CLONE_INTO_CGROUP", Since: "5.7", Required: true,
		Lost: "programs cannot start in their cgroup",
		Probe: func(*Scratch) (string, error) {
			null, err := os.Open(os.DevNull)
			if err != nil {
				return "", err
			}
			defer null.Close()
			// No cgroup, and no program: it never gets as far as a process.
			err = spawnNothing(&syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(null.Fd())})
			if errors.Is(err, unix.EBADF) {
				err = nil
			}
			return "", err
		},
	},
}

// spawnNothing starts a program that does not exist. It returns an error if the process could not
// be made.
func spawnNothing(attr *syscall.SysProcAttr) error {
	p, err := os.StartProcess("/dev/null/nothing", []string{"nothing"}, &os.ProcAttr{Sys: attr})
	if err == nil {
		_ = p.Kill()
		_, err = p.Wait()
		return err
	}
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// layout describes how the hierarchies of cgroups are mounted.
func layout() string {
	if v1, err := cgroup.Controllers(); err == nil && len(v1) > 0 {
		return "hybrid (v1 beside v2)"
	}
	return "v2 only"
}
