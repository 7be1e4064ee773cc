// Package pidfd opens processes, so that another process that gets the number of an
// ended one is not taken for it, and waits for their end.
//
// It starts no process and owns none. Opening takes no privilege; Linux 5.10
// (PIDFD_NONBLOCK).
package pidfd

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/watch"
)

// Open opens a process, so that Await can wait for it: a pidfd (Linux 5.10 for one
// that does not block).
func Open(pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "process"), nil
}

// OnEnd calls reap, which waits for a child, on a goroutine of its own when the child has
// ended; where nobody tells when that is, at once.
func OnEnd(pid int, reap func()) {
	process, err := Open(pid)
	if err == nil {
		_, err = watch.Start(process, func() bool {
			process.Close()
			reap()
			return false
		})
		if err == nil {
			return
		}
		process.Close()
	}
	go reap()
}

// Await waits until a process has ended, or the file is closed. It takes no thread
// for that, as os.Process.Wait does: one who has many children then waits for each
// without one.
//
// Of a process that could not be opened, nil, it knows nothing and waits for nothing.
func Await(process *os.File) {
	if process == nil {
		return
	}
	raw, err := process.SyscallConn()
	if err != nil {
		return
	}
	woken := false
	_ = raw.Read(func(fd uintptr) bool { // or it is closed
		was := woken
		woken = true
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		if err != nil {
			// Somebody has taken poll(2) from us with prlimit(2). What the runtime
			// wakes us for is the end.
			return was
		}
		return n > 0
	})
}
