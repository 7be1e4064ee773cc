// Package poll asks what poll(2) knows of an open file. It does not wait.
package poll

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// HungUp tells whether the other side is gone: of a connection, or of a seccomp listener whose filter
// no process has any more. A file that the caller has closed counts as hung up; if poll(2) fails, the
// file does not.
func HungUp(file syscall.Conn) bool {
	events, open := poll(file, 0)
	return !open || events&unix.POLLHUP != 0
}

// Readable tells whether there is something to read, or a connection to accept. Nothing is to be read
// from a file that the caller has closed, or if poll(2) fails.
func Readable(file syscall.Conn) bool {
	events, _ := poll(file, unix.POLLIN)
	return events&unix.POLLIN != 0
}

func poll(file syscall.Conn, want int16) (events int16, open bool) {
	raw, err := file.SyscallConn()
	if err != nil {
		return 0, false
	}
	_ = raw.Control(func(fd uintptr) { // is not called if the file is closed
		open = true
		fds := []unix.PollFd{{Fd: int32(fd), Events: want}}
		if _, err := unix.Poll(fds, 0); err == nil {
			events = fds[0].Revents
		}
	})
	return events, open
}
