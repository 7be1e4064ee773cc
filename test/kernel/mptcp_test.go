// Relied upon: a Multipath TCP socket does not escape its cgroup's bind and
// connect programs. They run in the socket's cgroup, but for the hidden first
// subflow, a plain TCP socket: what the agent stored for the socket itself
// (sk_storage) is not seen by them, while getsockname's program sees it.
// A policy that knows a socket only by its storage would therefore take it for
// an unknown one, which is one reason why IPPROTO_MPTCP is replaced by TCP.
//
// Since: Linux 5.6 (MPTCP); checked on 6.18.
// By: bpf (every bind and connect program), graft (replaces the protocol).

package kernel

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

func mptcpSocket(t *testing.T, cg *cgroup) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP)
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.ENOPROTOOPT) {
		t.Skip("skip: needs MPTCP")
	}
	try(t, "make MPTCP socket", err)
	unix.Close(fd)
	return cg.socket(t, unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP)
}

func TestMPTCPRunsBindAndConnectProgramsOnItsSubflow(t *testing.T) {
	enterNetns(t)
	cg := newCgroup(t)
	listenerAt(t, unix.SOCK_STREAM, "127.0.0.1:80")
	storage := newStorage(t, 0)
	fd := mptcpSocket(t, cg)
	try(t, "tag socket", storage.Update(int32(fd), uint32(tag), ebpf.UpdateAny))

	watchTag := func(at ebpf.AttachType) record {
		r := newRecord(t)
		attach(t, cg, at, program(1, r.note(ctxProtocol), loadTag(storage, ctxSock), r.keep(2, tagRegister)))
		return r
	}
	bind4 := watchTag(ebpf.AttachCGroupInet4Bind)
	connect4 := watchTag(ebpf.AttachCGroupInet4Connect)
	name4 := watchTag(ebpf.AttachCgroupInet4GetSockname)

	try(t, "bind", unix.Bind(fd, sockaddr("127.0.0.3:0")))
	try(t, "connect", unix.Connect(fd, sockaddr("127.0.0.1:80")))
	want(t, "source address", hostOf(local(t, fd)), "127.0.0.3")

	for _, c := range []struct {
		name               string
		r                  record
		protocol, tag, run uint32
	}{
		{"bind4", bind4, unix.IPPROTO_TCP, 0, 1},
		{"connect4", connect4, unix.IPPROTO_TCP, 0, 1},
		{"getsockname4", name4, unix.IPPROTO_MPTCP, tag, 1},
	} {
		want(t, c.name+" protocol", c.r.word(t, 1), c.protocol)
		want(t, c.name+" tag", c.r.word(t, 2), c.tag)
		want(t, c.name+" runs", c.r.word(t, 0), c.run)
	}
}

func TestMPTCPObeysBindAndConnectPrograms(t *testing.T) {
	enterNetns(t)
	cg := newCgroup(t)
	listenerAt(t, unix.SOCK_STREAM, "127.0.0.1:80")
	fd := mptcpSocket(t, cg)
	attach(t, cg, ebpf.AttachCGroupInet4Bind, program(0))
	attach(t, cg, ebpf.AttachCGroupInet4Connect, program(0))
	want(t, "bind", unix.Bind(fd, sockaddr("127.0.0.3:0")), error(unix.EPERM))
	want(t, "connect", unix.Connect(fd, sockaddr("127.0.0.1:80")), error(unix.EPERM))
}
