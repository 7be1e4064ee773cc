package agent

import (
	"errors"
	"fmt"
	"os"
	"strings"

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

// startOf is field 22 of /proc/PID/stat (proc(5)).
func startOf(pid int) (string, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	text := string(stat)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 {
		return "", fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	return strings.Clone(fields[19]), nil // else all of the text is kept
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
