// Relied upon: TCP Fast Open does not evade the connect program: sendto(2) and
// sendmsg(2) with MSG_FASTOPEN run connect4, which can refuse, and so does the
// first write after a connect(2) that TCP_FASTOPEN_CONNECT made lazy (there the
// program runs at connect).
//
// Since: Linux 4.17.
// By: bpf (egress policy), graft (MSG_FASTOPEN needs no trap of its own).

package kernel

import (
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

func TestFastOpenRunsConnectProgram(t *testing.T) {
	enterNetns(t)
	listenerAt(t, unix.SOCK_STREAM, "127.0.0.1:80")
	cg := newCgroup(t)
	connect4 := watch(t, cg, ebpf.AttachCGroupInet4Connect, ctxIP4)

	fd := cg.socket(t, unix.AF_INET, unix.SOCK_STREAM, 0)
	try(t, "sendto", unix.Sendto(fd, []byte("x"), unix.MSG_FASTOPEN, sockaddr("127.0.0.1:80")))
	want(t, "address that connect4 sees", connect4.ip4(t, 1), "127.0.0.1")
	want(t, "MSG_FASTOPEN: connect4", connect4.runs(t), 1)

	fd = cg.socket(t, unix.AF_INET, unix.SOCK_STREAM, 0)
	try(t, "set option", unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, 1))
	try(t, "connect", unix.Connect(fd, sockaddr("127.0.0.1:80")))
	want(t, "TCP_FASTOPEN_CONNECT: connect4", connect4.runs(t), 1)
}

func TestFastOpenObeysConnectProgram(t *testing.T) {
	enterNetns(t)
	listenerAt(t, unix.SOCK_STREAM, "127.0.0.1:80")
	cg := newCgroup(t)
	attach(t, cg, ebpf.AttachCGroupInet4Connect, program(0))
	fd := cg.socket(t, unix.AF_INET, unix.SOCK_STREAM, 0)
	err := unix.Sendto(fd, []byte("x"), unix.MSG_FASTOPEN, sockaddr("127.0.0.1:80"))
	want(t, "sendto with MSG_FASTOPEN", err, error(unix.EPERM))
}
