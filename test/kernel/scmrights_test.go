// Relied upon: one message carries at most 253 files (SCM_MAX_FD): 254 are
// refused with EINVAL, 253 arrive.
//
// Since: Linux 2.6.38.
// By: keeper and shim/c (batches of sockets).

package kernel

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestMessageCarries253Files(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	try(t, "make socket pair", err)
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	files := make([]int, 254)
	for i := range files {
		files[i] = pair[0]
	}
	send := func(n int) error { return unix.Sendmsg(pair[0], []byte("x"), unix.UnixRights(files[:n]...), nil, 0) }
	want(t, "send 254 files", send(254), error(unix.EINVAL))
	try(t, "send 253 files", send(253))

	control := make([]byte, unix.CmsgSpace(4*254))
	_, n, flags, _, err := unix.Recvmsg(pair[1], make([]byte, 1), control, unix.MSG_CMSG_CLOEXEC)
	try(t, "receive files", err)
	want(t, "control message cut", flags&unix.MSG_CTRUNC, 0)
	messages, err := unix.ParseSocketControlMessage(control[:n])
	try(t, "parse control message", err)
	received, err := unix.ParseUnixRights(&messages[0])
	try(t, "parse files", err)
	for _, fd := range received {
		unix.Close(fd)
	}
	want(t, "files received", len(received), 253)
}
