package pidfd

import (
	"errors"

	"golang.org/x/sys/unix"
)

// FD is the descriptor of an open process or thread, for who does not wait for its end with
// Await. Whoever opens an FD closes it.
type FD int

// None is no process.
const None FD = -1

// openThread is PIDFD_THREAD of linux/pidfd.h.
const openThread = unix.O_EXCL

// OpenFD opens a process; ESRCH if there is none (Linux 5.3).
func OpenFD(pid int) (FD, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	return FD(fd), err
}

// OpenThread opens a thread; EINVAL before Linux 6.9, which knows only processes.
func OpenThread(tid int) (FD, error) {
	fd, err := unix.PidfdOpen(tid, openThread)
	return FD(fd), err
}

// Lives tells whether the process has not been waited for. If so, what was read by its
// number before, after it was opened, was about it. A process that the caller may not send
// signals to does not live (EPERM): CAP_KILL.
func (p FD) Lives() bool { return p.signal(0) == nil }

// Kill sends SIGKILL to the process, unless it has ended. CAP_KILL, or its user.
func (p FD) Kill() error {
	if err := p.signal(unix.SIGKILL); !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

func (p FD) signal(s unix.Signal) error { return unix.PidfdSendSignal(int(p), s, nil, 0) }

// File duplicates a file of the process, which is close-on-exec (Linux 5.6, CAP_SYS_PTRACE).
func (p FD) File(number int) (int, error) { return unix.PidfdGetfd(int(p), number, 0) }

// Close lets go of the process.
func (p FD) Close() error { return unix.Close(int(p)) }
