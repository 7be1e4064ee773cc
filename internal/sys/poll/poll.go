// Package poll asks whether the other side of an open file is gone.
package poll

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// HungUp tells whether poll(2) reports POLLHUP of a file: the other side of a connection is closed,
// or no process has the filter of a seccomp listener any more. It does not block. A file that the
// caller has closed counts as hung up; if poll(2) fails, the file does not.
func HungUp(file syscall.Conn) bool {
	raw, err := file.SyscallConn()
	if err != nil {
		return true
	}
	hungUp := true
	_ = raw.Control(func(fd uintptr) { // is not called if the file is closed
		fds := []unix.PollFd{{Fd: int32(fd)}}
		_, err := unix.Poll(fds, 0)
		hungUp = err == nil && fds[0].Revents&unix.POLLHUP != 0
	})
	return hungUp
}
