// Relied upon: cgroup_skb programs, of both directions, find what belongs to their
// cgroup (BPF_MAP_TYPE_CGROUP_STORAGE, the same value as an address program of
// the cgroup finds) and to their socket (BPF_MAP_TYPE_SK_STORAGE, by the full
// socket of skb->sk), and look up sockets of their namespace. Which namespace that
// is (bpf_get_netns_cookie) 6.18 tells them, 6.12 does not.
//
// Since: Linux 4.19 (cgroup storage), 5.9 (the same for programs of several
// types), 5.2 (socket storage).
// By: bpf (the second wall shares the tables of connect and sendmsg).

package kernel

import (
	"fmt"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

var skbDirections = []ebpf.AttachType{ebpf.AttachCGroupInetEgress, ebpf.AttachCGroupInetIngress}

// ofNumber begins with the value that a cgroup's storage has, in R7.
func ofNumber(storage *ebpf.Map) asm.Instructions {
	return asm.Instructions{
		asm.LoadMapPtr(asm.R1, storage.FD()),
		asm.Mov.Imm(asm.R2, 0),
		asm.FnGetLocalStorage.Call(),
		asm.LoadMem(asm.R7, asm.R0, 0, asm.Word),
	}
}

func TestPacketProgramsSharedStorageOfCgroup(t *testing.T) {
	enterNetns(t)
	cg, other := newCgroup(t), newCgroup(t)
	storage, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.CGroupStorage, KeySize: 8, ValueSize: 4})
	try(t, "make cgroup storage", err)
	t.Cleanup(func() { storage.Close() })
	hooks := append(skbDirections, ebpf.AttachCGroupUDP4Sendmsg)
	seen := map[*cgroup]map[ebpf.AttachType]record{}
	for i, group := range []*cgroup{cg, other} {
		seen[group] = map[ebpf.AttachType]record{}
		for _, at := range hooks {
			r := newRecord(t)
			seen[group][at] = r
			attach(t, group, at, program(1, ofNumber(storage), r.keep(1, asm.R7)))
		}
		var info unix.Stat_t
		try(t, "stat cgroup", unix.Fstat(group.fd, &info))
		try(t, "give number", storage.Update(info.Ino, uint32(tag+i), ebpf.UpdateExist))
	}
	for i, group := range []*cgroup{cg, other} {
		fd := group.socket(t, unix.AF_INET, unix.SOCK_DGRAM, 0)
		try(t, "bind", unix.Bind(fd, sockaddr(fmt.Sprintf("127.0.0.1:%d", 80+i))))
		sendmsg(t, fd, nil, fmt.Sprintf("127.0.0.1:%d", 80+i))
		datagram(t, fd)
		for _, at := range hooks {
			want(t, fmt.Sprintf("number that %v finds", at), seen[group][at].word(t, 1), uint32(tag+i))
		}
	}
}

// ofSocket leaves the socket's tag in tagRegister. The socket is full.
func ofSocket(storage *ebpf.Map) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Imm(tagRegister, 0),
		asm.LoadMem(asm.R1, asm.R6, skbSock, asm.DWord),
		asm.JEq.Imm(asm.R1, 0, "untagged"),
		asm.FnSkFullsock.Call(),
		asm.JEq.Imm(asm.R0, 0, "untagged"),
		asm.Mov.Reg(asm.R2, asm.R0),
		asm.LoadMapPtr(asm.R1, storage.FD()),
		asm.Mov.Imm(asm.R3, 0),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnSkStorageGet.Call(),
		asm.JEq.Imm(asm.R0, 0, "untagged"),
		asm.LoadMem(tagRegister, asm.R0, 0, asm.Word),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("untagged"),
	}
}

func TestPacketProgramsFindTagOfSocket(t *testing.T) {
	for _, l := range loopbacks {
		t.Run(l.name, func(t *testing.T) {
			enterNetns(t)
			cg := newCgroup(t)
			storage := newStorage(t, 0)
			seen := map[ebpf.AttachType]record{}
			for _, at := range skbDirections {
				seen[at] = newRecord(t)
				attach(t, cg, at, program(1, ofSocket(storage), seen[at].keep(1, tagRegister)))
			}
			fd := cg.socket(t, l.domain, unix.SOCK_DGRAM, 0)
			try(t, "bind", unix.Bind(fd, sockaddr(l.address)))
			try(t, "tag socket", storage.Update(int32(fd), uint32(tag), ebpf.UpdateAny))
			sendmsg(t, fd, nil, l.address)
			datagram(t, fd)
			for _, at := range skbDirections {
				want(t, fmt.Sprintf("tag that %v finds", at), seen[at].word(t, 1), tag)
			}
		})
	}
}

// lookUp finds the socket of 127.0.0.1:80 in the namespace of the packet, and keeps
// whether there is one in R7.
func lookUp(helper asm.BuiltinFunc) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Imm(asm.R7, 0),
		asm.Mov.Imm(asm.R1, 0x0100007f),
		asm.StoreMem(asm.RFP, -16, asm.R1, asm.Word), // source
		asm.StoreMem(asm.RFP, -12, asm.R1, asm.Word), // destination
		asm.Mov.Imm(asm.R1, 0),
		asm.StoreMem(asm.RFP, -8, asm.R1, asm.Half),
		asm.Mov.Imm(asm.R1, 80<<8),
		asm.StoreMem(asm.RFP, -6, asm.R1, asm.Half),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -16),
		asm.Mov.Imm(asm.R3, 12),
		asm.Mov.Imm(asm.R4, -1), // BPF_F_CURRENT_NETNS
		asm.Mov.Imm(asm.R5, 0),
		helper.Call(),
		asm.JEq.Imm(asm.R0, 0, "none"),
		asm.Mov.Imm(asm.R7, 1),
		asm.Mov.Reg(asm.R1, asm.R0),
		asm.FnSkRelease.Call(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("none"),
	}
}

func TestPacketProgramsLookUpSockets(t *testing.T) {
	for _, c := range []struct {
		helper asm.BuiltinFunc
		typ    int
	}{{asm.FnSkLookupTcp, unix.SOCK_STREAM}, {asm.FnSkLookupUdp, unix.SOCK_DGRAM}} {
		t.Run(c.helper.String(), func(t *testing.T) {
			enterNetns(t)
			cg := newCgroup(t)
			seen := map[ebpf.AttachType]record{}
			for _, at := range skbDirections {
				seen[at] = newRecord(t)
				attach(t, cg, at, program(1, lookUp(c.helper), seen[at].keep(1, asm.R7)))
			}
			fd := cg.socket(t, unix.AF_INET, unix.SOCK_DGRAM, 0)
			try(t, "bind", unix.Bind(fd, sockaddr("127.0.0.1:90")))
			for there := range uint32(2) {
				if there == 1 {
					listenerAt(t, c.typ, "127.0.0.1:80")
				}
				sendmsg(t, fd, nil, "127.0.0.1:90")
				datagram(t, fd)
				for _, at := range skbDirections {
					want(t, fmt.Sprintf("sockets that %v finds", at), seen[at].word(t, 1), there)
				}
			}
		})
	}
}

func TestPacketProgramsToldNamespace(t *testing.T) {
	enterNetns(t)
	cg := newCgroup(t)
	r := newRecord(t)
	told := program(1, asm.Instructions{
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.FnGetNetnsCookie.Call(),
		asm.Mov.Reg(asm.R7, asm.R0),
	}, r.keep(1, asm.R7))
	for _, at := range skbDirections {
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Type: ebpf.CGroupSKB, AttachType: at, License: "GPL", Instructions: told,
		})
		if !linuxIs(t, 6, 18) && err != nil {
			t.Skip("skip: needs Linux 6.18: bpf_get_netns_cookie in cgroup_skb programs")
		}
		try(t, "load program", err)
		prog.Close()
		attach(t, cg, at, told)
		fd := cg.socket(t, unix.AF_INET, unix.SOCK_DGRAM, 0)
		try(t, "bind", unix.Bind(fd, sockaddr("127.0.0.1:80")))
		cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		try(t, "get SO_NETNS_COOKIE", err)
		sendmsg(t, fd, nil, "127.0.0.1:80")
		want(t, fmt.Sprintf("namespace that %v is told", at), r.word(t, 1), uint32(cookie))
		try(t, "close", unix.Close(fd))
	}
}
