package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/pidfd"
	"github.com/tsugiki/tsugiki/internal/sys/proc"
)

// Process is a process that others have started.
type Process struct {
	PID     int
	started string // start time as the kernel writes it: another process with the same pid has another
	fd      pidfd.FD
}

// OpenProcess opens the process that has a pid.
func OpenProcess(pid int) (*Process, error) {
	fd, err := pidfd.OpenFD(pid)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	p := &Process{PID: pid, fd: fd}
	if p.started, err = startOf(pid); err == nil && !p.lives() {
		err = os.ErrProcessDone // startOf may have read about another process
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open process %d: %w", pid, err), fd.Close())
	}
	return p, nil
}

// reopenProcess opens the process that has a pid and a start time, if it still lives.
func reopenProcess(pid int, started string) (*Process, error) {
	p, err := OpenProcess(pid)
	if err == nil && p.started != started {
		return nil, errors.Join(fmt.Errorf("open process %d: %w", pid, os.ErrProcessDone), p.Close())
	}
	return p, err
}

// HasEnded tells whether an error of OpenProcess says that there is no such process. Others say that it is not known.
func HasEnded(err error) bool {
	return errors.Is(err, unix.ESRCH) || errors.Is(err, os.ErrProcessDone) || errors.Is(err, fs.ErrNotExist)
}

// Lives tells whether the first program of a container lives, or may live.
func (s State) Lives() bool {
	if s.PID == 0 {
		return false
	}
	p, err := reopenProcess(s.PID, s.Started)
	if err == nil {
		_ = p.Close() // nothing was written to it
	}
	return err == nil || !HasEnded(err)
}

// startOf returns the start time of a process as the kernel writes it.
func startOf(pid int) (string, error) {
	s, err := proc.ReadStat(pid)
	return strconv.FormatUint(s.Start, 10), err
}

// lives tells whether the process has not ended. If so, all that was read by its pid before was
// about this process.
func (p *Process) lives() bool { return p.fd.Lives() }

// IsOf tells whether the process is the process pid, or its child: the process pid could kill both
// itself.
func (p *Process) IsOf(pid int) bool {
	if pid <= 0 || p.PID == pid { // 0: the pid is of a pid namespace that is not below ours
		return pid > 0 && p.lives()
	}
	s, err := proc.ReadStat(p.PID)
	return err == nil && s.Parent == pid && p.lives()
}

// IsIn tells whether the process is in the cgroup of a directory.
func (p *Process) IsIn(dir string) bool {
	pids, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	return err == nil && slices.Contains(strings.Fields(string(pids)), strconv.Itoa(p.PID)) && p.lives()
}

// isFiltered tells whether the process's first thread has a seccomp filter.
func (p *Process) isFiltered() bool {
	status, err := proc.Status(p.PID)
	mode, _ := status.Get("Seccomp")
	return err == nil && mode == "2" && p.lives()
}

// Kill kills the process, if there is one.
func (p *Process) Kill() error {
	if p == nil {
		return nil // it had ended
	}
	if err := p.fd.Kill(); err != nil {
		return fmt.Errorf("kill process %d: %w", p.PID, err)
	}
	return nil
}

// Close lets go of the process.
func (p *Process) Close() error { return p.fd.Close() }
