package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/tsugiki/tsugiki/internal/sys/proc"

	"golang.org/x/sys/unix"
)

// process is a process of somebody else's.
type process struct {
	pid     int
	started string // when, in the kernel's words: another with its pid has another
	pidfd   int
}

func openProcess(pid int) (*process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	p := &process{pid: pid, pidfd: fd}
	if p.started, err = startOf(pid); err == nil {
		err = unix.PidfdSendSignal(fd, 0, nil, 0) // it is the one that was read about
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open process %d: %w", pid, err), unix.Close(fd))
	}
	return p, nil
}

// reopenProcess opens the process that had a pid and a start time, if it lives.
func reopenProcess(pid int, started string) (*process, error) {
	p, err := openProcess(pid)
	if err == nil && p.started != started {
		return nil, errors.Join(fmt.Errorf("open process %d: %w", pid, os.ErrProcessDone), p.close())
	}
	return p, err
}

// startOf is when a process began, in the kernel's words.
func startOf(pid int) (string, error) {
	s, err := proc.ReadStat(pid)
	return strconv.FormatUint(s.Start, 10), err
}

// lives tells whether the process has not ended, so that what was read by its pid before
// was about it.
func (p *process) lives() bool { return unix.PidfdSendSignal(p.pidfd, 0, nil, 0) == nil }

// isOf tells whether the process is another, or its child: that one could kill it itself.
func (p *process) isOf(pid int) bool {
	if pid <= 0 || p.pid == pid { // 0: of a pid namespace that is not below ours
		return pid > 0 && p.lives()
	}
	s, err := proc.ReadStat(p.pid)
	return err == nil && s.Parent == pid && p.lives()
}

// isIn tells whether the process is in a cgroup, which is given by its directory.
func (p *process) isIn(dir string) bool {
	pids, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	return err == nil && slices.Contains(strings.Fields(string(pids)), strconv.Itoa(p.pid)) && p.lives()
}

// isFiltered tells whether a seccomp filter is on the process's first thread.
func (p *process) isFiltered() bool {
	status, err := proc.Status(p.pid)
	mode, _ := status.Get("Seccomp")
	return err == nil && mode == "2" && p.lives()
}

func (p *process) kill() error {
	if p == nil {
		return nil // it was gone
	}
	if err := unix.PidfdSendSignal(p.pidfd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", p.pid, err)
	}
	return nil
}

func (p *process) close() error { return unix.Close(p.pidfd) }
