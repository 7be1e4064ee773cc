// Relied upon: a cgroup/setsockopt program of the socket's cgroup refuses an
// option with EPERM before the kernel sees it, whoever calls, and can read the
// socket's storage. Options longer than a page pass, though the program sees
// only their first page.
//
// It sees options only: a control message sets SO_MARK for a datagram past it,
// given CAP_NET_RAW or CAP_NET_ADMIN in the namespace's user namespace. Marks
// have to be kept out by a program that sees packets, or by those capabilities.
//
// Since: Linux 5.3; SO_MARK by CAP_NET_RAW 5.17; long options checked on 6.18.
// By: bpf (options a container may not use on the host's sockets).

package kernel

import (
	"encoding/binary"
	"errors"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// Offsets in struct bpf_sockopt.
const (
	optSock  = 0
	optLevel = 24
	optName  = 28
)

const soRcvmark = 75 // SO_RCVMARK of asm-generic/socket.h, Linux 5.19

// refuseMark is a program that refuses SO_MARK and nothing else. It records the
// socket's tag.
func refuseMark(r record, storage *ebpf.Map) asm.Instructions {
	return program(1, r.note(optLevel, optName), loadTag(storage, optSock), r.keep(3, tagRegister), asm.Instructions{
		asm.LoadMem(asm.R2, asm.R6, optLevel, asm.Word),
		asm.JNE.Imm(asm.R2, unix.SOL_SOCKET, "allow"),
		asm.LoadMem(asm.R2, asm.R6, optName, asm.Word),
		asm.JNE.Imm(asm.R2, unix.SO_MARK, "allow"),
		asm.Mov.Imm(asm.R0, 0),
		asm.Return(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("allow"),
	})
}

func TestSetsockoptProgramRefuses(t *testing.T) {
	enterNetns(t)
	cg := newCgroup(t)
	r, storage := newRecord(t), newStorage(t, 0)
	attach(t, cg, ebpf.AttachCGroupSetsockopt, refuseMark(r, storage))
	fd := cg.socket(t, unix.AF_INET, unix.SOCK_DGRAM, 0)
	try(t, "tag socket", storage.Update(int32(fd), uint32(tag), ebpf.UpdateAny))

	want(t, "set SO_MARK", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, 7), error(unix.EPERM))
	want(t, "tag that the program sees", r.word(t, 3), tag)
	mark, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK)
	try(t, "get SO_MARK", err)
	want(t, "mark", mark, 0)
	try(t, "set SO_PRIORITY", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PRIORITY, 1))
	other := socket(t, unix.AF_INET, unix.SOCK_DGRAM, 0)
	try(t, "set SO_MARK outside of the cgroup", unix.SetsockoptInt(other, unix.SOL_SOCKET, unix.SO_MARK, 7))

	long := make([]byte, 2*unix.Getpagesize())
	binary.NativeEndian.PutUint32(long, 1)
	try(t, "set option longer than a page", unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, string(long)))
	reuse, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR)
	try(t, "get SO_REUSEADDR", err)
	want(t, "SO_REUSEADDR", reuse, 1)
}

func TestSetsockoptProgramDoesNotSeeControlMessages(t *testing.T) {
	enterNetns(t)
	server := listenerAt(t, unix.SOCK_DGRAM, "127.0.0.1:53")
	if err := unix.SetsockoptInt(server, unix.SOL_SOCKET, soRcvmark, 1); errors.Is(err, unix.ENOPROTOOPT) {
		t.Skip("skip: needs Linux 5.19: SO_RCVMARK")
	}
	cg := newCgroup(t)
	r := newRecord(t)
	attach(t, cg, ebpf.AttachCGroupSetsockopt, refuseMark(r, newStorage(t, 0)))
	fd := cg.socket(t, unix.AF_INET, unix.SOCK_DGRAM, 0)

	sendmsg(t, fd, markMessage(7), "127.0.0.1:53")
	control := make([]byte, 64)
	_, n, _, _, err := unix.Recvmsg(server, make([]byte, 1), control, 0)
	try(t, "recvmsg", err)
	messages, err := unix.ParseSocketControlMessage(control[:n])
	try(t, "parse control message", err)
	if len(messages) != 1 || messages[0].Header.Type != unix.SO_MARK {
		t.Fatalf("control messages %v, want a mark", messages)
	}
	want(t, "mark of the datagram", binary.NativeEndian.Uint32(messages[0].Data), 7)
	want(t, "runs of the program", r.runs(t), 0)
}

func markMessage(mark uint32) []byte {
	b := make([]byte, unix.CmsgSpace(4))
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	h.Level, h.Type = unix.SOL_SOCKET, unix.SO_MARK
	h.SetLen(unix.CmsgLen(4))
	binary.NativeEndian.PutUint32(b[unix.CmsgLen(0):], mark)
	return b
}
