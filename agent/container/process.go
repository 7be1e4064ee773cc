package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/tsugiki/tsugiki/internal/sys/pidfd"
	"github.com/tsugiki/tsugiki/internal/sys/proc"
)

// Process is a process of somebody else's.
type Process struct {
	PID     int
	started string // when, in the kernel's words: another with its pid has another
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
		err = os.ErrProcessDone // another may have been read about
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open process %d: %w", pid, err), fd.Close())
	}
	return p, nil
}

// reopenProcess opens the process that had a pid and a start time, if it lives.
func reopenProcess(pid int, started string) (*Process, error) {
	p, err := OpenProcess(pid)
	if err == nil && p.started != started {
		return nil, errors.Join(fmt.Errorf("open process %d: %w", pid, os.ErrProcessDone), p.Close())
	}
	return p, err
}

// Lives tells whether the first program of a container lives.
func (s State) Lives() bool {
	p, err := reopenProcess(s.PID, s.Started)
	if err == nil {
		err = p.Close()
	}
	return err == nil
}

// startOf is when a process began, in the kernel's words.
func startOf(pid int) (string, error) {
	s, err := proc.ReadStat(pid)
	return strconv.FormatUint(s.Start, 10), err
}

// lives tells whether the process has not ended, so that what was read by its pid before
// was about it.
func (p *Process) lives() bool { return p.fd.Lives() }

// IsOf tells whether the process is another, or its child: that one could kill it itself.
func (p *Process) IsOf(pid int) bool {
	if pid <= 0 || p.PID == pid { // 0: of a pid namespace that is not below ours
		return pid > 0 && p.lives()
	}
	s, err := proc.ReadStat(p.PID)
	return err == nil && s.Parent == pid && p.lives()
}

// IsIn tells whether the process is in a cgroup, which is given by its directory.
func (p *Process) IsIn(dir string) bool {
	pids, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	return err == nil && slices.Contains(strings.Fields(string(pids)), strconv.Itoa(p.PID)) && p.lives()
}

// isFiltered tells whether a seccomp filter is on the process's first thread.
func (p *Process) isFiltered() bool {
	status, err := proc.Status(p.PID)
	mode, _ := status.Get("Seccomp")
	return err == nil && mode == "2" && p.lives()
}

// Kill ends the process, if there is one.
func (p *Process) Kill() error {
	if p == nil {
		return nil // it was gone
	}
	if err := p.fd.Kill(); err != nil {
		return fmt.Errorf("kill process %d: %w", p.PID, err)
	}
	return nil
}

// Close lets go of the process.
func (p *Process) Close() error { return p.fd.Close() }
