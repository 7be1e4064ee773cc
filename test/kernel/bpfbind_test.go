// Relied upon: bpf_bind() with port 0 in a connect4 or connect6 program sets
// the source address, leaves the port to the kernel and does not run the bind
// programs. A second connect of the same UDP socket keeps the source, although
// bpf_bind() then answers EINVAL.
//
// bpf_bind() is no guarantee of the source: it answers EINVAL, and changes
// nothing, for every socket that has a port already, be it by bind(2) to the
// wildcard or by an earlier sendto(2). The program has to look at the socket's
// own address then (bpf_sock.src_ip4) and refuse what does not fit. And it
// overrides an address that was bound without a port, by
// IP_BIND_ADDRESS_NO_PORT or before a connect(AF_UNSPEC). An IPv6 socket that
// connects to a mapped IPv4 address needs a mapped source.
//
// Since: Linux 4.17.
// By: bpf (connect programs choose the endpoint's address).

package kernel

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

const bindResult = asm.R7

// bindTo calls bpf_bind() with an address and port 0, and puts what it returned
// into bindResult. The socket address is built at the start of the stack.
func bindTo(source string) asm.Instructions {
	const sockaddr = -32
	addr := netip.MustParseAddr(source)
	family, size, at := int64(unix.AF_INET), int32(unix.SizeofSockaddrInet4), int16(4)
	if addr.Is6() {
		family, size, at = unix.AF_INET6, unix.SizeofSockaddrInet6, 8
	}
	var insns asm.Instructions
	for offset := int16(sockaddr); offset < 0; offset += 4 {
		insns = append(insns, asm.StoreImm(asm.RFP, offset, 0, asm.Word))
	}
	insns = append(insns, asm.StoreImm(asm.RFP, sockaddr, family, asm.Half))
	for b := addr.AsSlice(); len(b) > 0; b, at = b[4:], at+4 {
		word := int64(int32(binary.NativeEndian.Uint32(b)))
		insns = append(insns, asm.StoreImm(asm.RFP, sockaddr+at, word, asm.Word))
	}
	return append(insns,
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, sockaddr),
		asm.Mov.Imm(asm.R3, size),
		asm.FnBind.Call(),
		asm.Mov.Reg(bindResult, asm.R0))
}

const ipBindAddressNoPort = 24 // IP_BIND_ADDRESS_NO_PORT of linux/in.h

const einval = -int32(unix.EINVAL)

func TestBPFBindChoosesSource(t *testing.T) {
	enterNetns(t)
	testkit.AddToLoopback(t, "2001:db8::2/128")
	cg := newCgroup(t)
	for _, a := range []string{"127.0.0.1:80", "127.0.0.1:81", "[::1]:80", "[::1]:81"} {
		listenerAt(t, unix.SOCK_STREAM, a)
	}
	bind4 := watch(t, cg, ebpf.AttachCGroupInet4Bind)
	bind6 := watch(t, cg, ebpf.AttachCGroupInet6Bind)
	r := newRecord(t)
	attach(t, cg, ebpf.AttachCGroupInet4Connect, program(1, bindTo("127.0.0.2"), r.keep(1, bindResult)))
	attach(t, cg, ebpf.AttachCGroupInet6Connect, program(1, bindTo("2001:db8::2"), r.keep(1, bindResult)))

	for _, c := range []struct {
		name                  string
		domain, typ           int
		first, second, source string
		again                 int32 // what bpf_bind returns for the second connect
	}{
		{"TCP over IPv4", unix.AF_INET, unix.SOCK_STREAM, "127.0.0.1:80", "127.0.0.1:81", "127.0.0.2", 0},
		{"TCP over IPv6", unix.AF_INET6, unix.SOCK_STREAM, "[::1]:80", "[::1]:81", "2001:db8::2", 0},
		{"UDP over IPv4", unix.AF_INET, unix.SOCK_DGRAM, "127.0.0.1:80", "127.0.0.1:81", "127.0.0.2", einval},
		{"UDP over IPv6", unix.AF_INET6, unix.SOCK_DGRAM, "[::1]:80", "[::1]:81", "2001:db8::2", einval},
	} {
		subtest(t, c.name, func(t *testing.T) {
			fd := cg.socket(t, c.domain, c.typ, 0)
			connect := func(to string, result int32) {
				t.Helper()
				try(t, "connect", unix.Connect(fd, sockaddr(to)))
				want(t, "bpf_bind", int32(r.word(t, 1)), result)
				want(t, "source", hostOf(local(t, fd)), c.source)
			}
			connect(c.first, 0)
			if c.typ == unix.SOCK_STREAM {
				disconnect(t, fd) // TCP connects again only after this
			}
			connect(c.second, c.again)
		})
	}
	want(t, "runs of bind4", bind4.runs(t), 0)
	want(t, "runs of bind6", bind6.runs(t), 0)
}

func TestBPFBindOnSocketThatHasAnAddress(t *testing.T) {
	enterNetns(t)
	const srcIP4 = 24 // in struct bpf_sock
	listenerAt(t, unix.SOCK_STREAM, "127.0.0.1:80")
	cg := newCgroup(t)
	r := newRecord(t)
	attach(t, cg, ebpf.AttachCGroupInet4Connect, program(1, bindTo("127.0.0.2"), r.keep(1, bindResult), asm.Instructions{
		asm.LoadMem(asm.R8, asm.R6, ctxSock, asm.DWord),
		asm.LoadMem(asm.R8, asm.R8, srcIP4, asm.Word),
	}, r.keep(2, asm.R8)))

	bind := func(t *testing.T, fd int) { try(t, "bind", unix.Bind(fd, sockaddr("127.0.0.3:0"))) }
	for _, c := range []struct {
		name    string
		prepare func(*testing.T, int)
		result  int32
		seen    string // the address that the program sees after bpf_bind()
		source  string
		udpOnly bool
	}{
		{"bound", bind, einval, "127.0.0.3", "127.0.0.3", false},
		{"bound to wildcard", func(t *testing.T, fd int) {
			try(t, "bind", unix.Bind(fd, sockaddr("0.0.0.0:0")))
		}, einval, "0.0.0.0", "127.0.0.1", false},
		{"bound without port", func(t *testing.T, fd int) {
			try(t, "set option", unix.SetsockoptInt(fd, unix.IPPROTO_IP, ipBindAddressNoPort, 1))
			bind(t, fd)
		}, 0, "127.0.0.2", "127.0.0.2", false},
		{"bound, connected, disconnected", func(t *testing.T, fd int) {
			bind(t, fd)
			try(t, "connect", unix.Connect(fd, sockaddr("127.0.0.1:80")))
			disconnect(t, fd)
		}, 0, "127.0.0.2", "127.0.0.2", false},
		{"used by sendto", func(t *testing.T, fd int) {
			try(t, "sendto", unix.Sendto(fd, nil, 0, sockaddr("127.0.0.1:9")))
		}, einval, "0.0.0.0", "127.0.0.1", true},
	} {
		for name, typ := range map[string]int{"TCP": unix.SOCK_STREAM, "UDP": unix.SOCK_DGRAM} {
			if c.udpOnly && typ != unix.SOCK_DGRAM {
				continue
			}
			subtest(t, name+" "+c.name, func(t *testing.T) {
				fd := cg.socket(t, unix.AF_INET, typ, 0)
				c.prepare(t, fd)
				try(t, "connect", unix.Connect(fd, sockaddr("127.0.0.1:80")))
				want(t, "bpf_bind", int32(r.word(t, 1)), c.result)
				want(t, "bpf_sock.src_ip4", r.ip4(t, 2), c.seen)
				want(t, "source", hostOf(local(t, fd)), c.source)
			})
		}
	}
}

func TestBPFBindForMappedDestination(t *testing.T) {
	enterNetns(t)
	listenerAt(t, unix.SOCK_STREAM, "127.0.0.1:80")
	for _, c := range []struct {
		source string
		err    error
	}{{"::ffff:127.0.0.2", nil}, {"::1", unix.ENETUNREACH}} {
		subtest(t, c.source, func(t *testing.T) {
			cg := newCgroup(t)
			attach(t, cg, ebpf.AttachCGroupInet6Connect, program(1, bindTo(c.source)))
			for _, typ := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM} {
				fd := cg.socket(t, unix.AF_INET6, typ, 0)
				want(t, "connect", unix.Connect(fd, sockaddr("[::ffff:127.0.0.1]:80")), c.err)
				want(t, "source", hostOf(local(t, fd)), c.source)
			}
		})
	}
}
