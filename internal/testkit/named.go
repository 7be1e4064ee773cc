package testkit

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/proc"
)

// Named returns the ids of the processes of a process group that have a name and have not ended.
// Who may read /proc finds those of other users too.
func Named(t TB, group int, name string) (list []int) {
	t.Helper()
	pids, err := proc.All()
	if err != nil {
		t.Fatalf("%v", err)
	}
	for _, pid := range pids {
		if of, err := unix.Getpgid(pid); err != nil || of != group {
			continue
		}
		if stat, err := proc.ReadStat(pid); err == nil && stat.Comm == name && !stat.Ended() {
			list = append(list, pid)
		}
	}
	return list
}

// Kill ends a process, if it has not ended, and waits for that. kill(2) alone returns while the
// process may still do things, and /proc shows it as if nobody had ended it.
func Kill(t TB, pid int) {
	t.Helper()
	process, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return
	}
	if err != nil {
		t.Fatalf("open process %d: %v", pid, err)
	}
	defer unix.Close(process)
	if err := unix.PidfdSendSignal(process, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		t.Fatalf("kill process %d: %v", pid, err)
	}
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		_, err = unix.Poll([]unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}, -1)
	}
	if err != nil {
		t.Fatalf("await the end of process %d: %v", pid, err)
	}
}
