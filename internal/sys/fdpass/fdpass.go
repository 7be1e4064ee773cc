// Package fdpass makes the sockets over which a process and one that it starts pass each
// other messages and files, and takes files out of the messages.
//
// It knows no protocol. It needs no privileges.
package fdpass

import (
	"encoding/binary"
	"errors"
	"io"
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

// ReadMsg reads a message and its control data from a SOCK_SEQPACKET connection, like
// [net.UnixConn.ReadMsgUnix]. It returns io.EOF only after the last message. The kernel may tell the
// end first: the receiver finds no message, then the peer sends one and closes, then the receiver
// looks whether the peer has closed (test/kernel/lastmessage_test.go).
func ReadMsg(c *net.UnixConn, b, oob []byte) (n, oobn, flags int, err error) {
	n, oobn, flags, _, err = c.ReadMsgUnix(b, oob)
	if errors.Is(err, io.EOF) {
		n, oobn, flags, _, err = c.ReadMsgUnix(b, oob)
	}
	return n, oobn, flags, err
}

// Descriptors appends to fds every descriptor in the control data of a message
// (SCM_RIGHTS), so that none is lost whatever else is wrong with the message. The kernel
// has made them ours; Go asks for close-on-exec.
func Descriptors(control []byte, fds []int) []int {
	for len(control) >= unix.SizeofCmsghdr {
		h, data, rest, err := unix.ParseOneSocketControlMessage(control)
		if err != nil {
			break
		}
		if h.Level == unix.SOL_SOCKET && h.Type == unix.SCM_RIGHTS {
			for ; len(data) >= 4; data = data[4:] {
				fds = append(fds, int(int32(binary.NativeEndian.Uint32(data))))
			}
		}
		control = rest
	}
	return fds
}

// Files are the Descriptors of a message. Each file is called name.
func Files(control []byte, name string) []*os.File {
	var files []*os.File
	for _, fd := range Descriptors(control, nil) {
		files = append(files, os.NewFile(uintptr(fd), name))
	}
	return files
}
