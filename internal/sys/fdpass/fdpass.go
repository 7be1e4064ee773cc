// Package fdpass makes the sockets over which a process and one that it starts pass each
// other messages and files.
//
// It knows no protocol. It needs no privileges.
package fdpass

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Pair makes the sockets by which one speaks to a program that it starts:
// SOCK_SEQPACKET, close-on-exec, and only ours non-blocking.
func Pair(name string) (ours *net.UnixConn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	theirs = os.NewFile(uintptr(fds[1]), name)
	f := os.NewFile(uintptr(fds[0]), name)
	defer f.Close()
	c, err := net.FileConn(f) // a duplicate
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return c.(*net.UnixConn), theirs, nil
}
