// Relied upon: a socket can carry a tag (BPF_MAP_TYPE_SK_STORAGE) that user
// space sets through the socket's fd and that every address program of its
// cgroup reads; with BPF_F_CLONE, sockets accepted from a tagged listener carry
// the same tag, without it none. A getsockname4 program can rewrite what the
// program sees, and accept(2) reports the peer as getpeername4 rewrote it.
//
// Since: Linux 5.2 (storage), 5.4 (BPF_F_CLONE), 5.8 (getsockname and getpeername
// programs); storage in all address programs checked on 6.18.
// By: bpf (which endpoint a socket was made for, the name it shows), keeper
// (sets the tag when it makes the socket).

package kernel

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

const tag = 42

// newStorage makes a map with one 32-bit tag per socket.
func newStorage(t *testing.T, flags uint32) *ebpf.Map {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Type: ebpf.SkStorage, KeySize: 4, ValueSize: 4, Flags: unix.BPF_F_NO_PREALLOC | flags,
		Key: &btf.Int{Size: 4}, Value: &btf.Int{Size: 4},
	})
	try(t, "make socket storage", err)
	t.Cleanup(func() { m.Close() })
	return m
}

const tagRegister = asm.R7

// loadTag puts the tag of the context's socket, or 0, into tagRegister. The
// socket is at an offset of the context that depends on the program type.
func loadTag(storage *ebpf.Map, socket int16) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Imm(tagRegister, 0),
		asm.LoadMem(asm.R2, asm.R6, socket, asm.DWord),
		asm.LoadMapPtr(asm.R1, storage.FD()),
		asm.Mov.Imm(asm.R3, 0),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnSkStorageGet.Call(),
		asm.JEq.Imm(asm.R0, 0, "untagged"),
		asm.LoadMem(tagRegister, asm.R0, 0, asm.Word),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("untagged"),
	}
}

func TestSocketStorageInEveryAddressProgram(t *testing.T) {
	for _, family := range []struct {
		name, loopback string
		domain         int
		hooks          []ebpf.AttachType
	}{
		{"IPv4", "127.0.0.1:53", unix.AF_INET, []ebpf.AttachType{
			ebpf.AttachCGroupInet4Bind, ebpf.AttachCGroupInet4Connect,
			ebpf.AttachCGroupUDP4Sendmsg, ebpf.AttachCGroupUDP4Recvmsg,
			ebpf.AttachCgroupInet4GetSockname, ebpf.AttachCgroupInet4GetPeername,
		}},
		{"IPv6", "[::1]:53", unix.AF_INET6, []ebpf.AttachType{
			ebpf.AttachCGroupInet6Bind, ebpf.AttachCGroupInet6Connect,
			ebpf.AttachCGroupUDP6Sendmsg, ebpf.AttachCGroupUDP6Recvmsg,
			ebpf.AttachCgroupInet6GetSockname, ebpf.AttachCgroupInet6GetPeername,
		}},
	} {
		t.Run(family.name, func(t *testing.T) {
			enterNetns(t)
			cg := newCgroup(t)
			storage := newStorage(t, 0)
			seen := map[ebpf.AttachType]record{}
			for _, at := range family.hooks {
				r := newRecord(t)
				attach(t, cg, at, program(1, r.note(), loadTag(storage, ctxSock), r.keep(1, tagRegister)))
				seen[at] = r
			}

			fd := cg.socket(t, family.domain, unix.SOCK_DGRAM, 0)
			try(t, "tag socket", storage.Update(int32(fd), uint32(tag), ebpf.UpdateAny))
			self := sockaddr(family.loopback)
			try(t, "bind", unix.Bind(fd, self))
			try(t, "sendto", unix.Sendto(fd, []byte("x"), 0, self))
			_, _, err := unix.Recvfrom(fd, make([]byte, 1), unix.MSG_DONTWAIT)
			try(t, "recvfrom", err)
			try(t, "connect", unix.Connect(fd, self))
			_, err = unix.Getsockname(fd)
			try(t, "getsockname", err)
			_, err = unix.Getpeername(fd)
			try(t, "getpeername", err)

			for _, at := range family.hooks {
				want(t, at.String()+" tag", seen[at].word(t, 1), tag)
				want(t, at.String()+" runs", seen[at].runs(t), 1)
			}
		})
	}
}

func TestSocketStorageIsInheritedOnAccept(t *testing.T) {
	enterNetns(t)
	cg := newCgroup(t)
	cloned, own := newStorage(t, unix.BPF_F_CLONE), newStorage(t, 0)
	r := newRecord(t)
	attach(t, cg, ebpf.AttachCgroupInet4GetSockname,
		program(1, loadTag(cloned, ctxSock), r.keep(1, tagRegister)))

	var listener int
	cg.run(t, func() { listener = listenerAt(t, unix.SOCK_STREAM, "127.0.0.1:80") })
	try(t, "tag listener", cloned.Update(int32(listener), uint32(tag), ebpf.UpdateAny))
	try(t, "tag listener", own.Update(int32(listener), uint32(tag), ebpf.UpdateAny))
	client := socket(t, unix.AF_INET, unix.SOCK_STREAM, 0)
	try(t, "connect", unix.Connect(client, sockaddr("127.0.0.1:80")))
	conn, _ := accept(t, listener)

	var got uint32
	try(t, "look up tag of accepted socket", cloned.Lookup(int32(conn), &got))
	want(t, "tag with BPF_F_CLONE", got, tag)
	if err := own.Lookup(int32(conn), &got); !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Errorf("tag without BPF_F_CLONE: %v, %v, want none", got, err)
	}
	local(t, conn)
	want(t, "tag that the program sees", r.word(t, 1), tag)
}

func TestNameProgramsRewriteWhatIsSeen(t *testing.T) {
	enterNetns(t)
	cg := newCgroup(t)
	var listener int
	cg.run(t, func() { listener = listenerAt(t, unix.SOCK_STREAM, "127.0.0.1:80") })
	rename := append(storeAddress(ctxIP4, "198.51.100.7"),
		asm.Mov.Imm(asm.R2, 0),
		asm.StoreMem(asm.R6, ctxPort, asm.R2, asm.Word))
	attach(t, cg, ebpf.AttachCgroupInet4GetSockname, program(1, rename))
	attach(t, cg, ebpf.AttachCgroupInet4GetPeername, program(1, rename))
	want(t, "listener's name", local(t, listener), "198.51.100.7:0")

	client := socket(t, unix.AF_INET, unix.SOCK_STREAM, 0)
	try(t, "connect", unix.Connect(client, sockaddr("127.0.0.1:80")))
	conn, peer := accept(t, listener)
	want(t, "peer as accept tells it", peer, "198.51.100.7:0")
	want(t, "accepted socket's name", local(t, conn), "198.51.100.7:0")
	want(t, "client's name, outside of the cgroup", hostOf(local(t, client)), "127.0.0.1")
}
