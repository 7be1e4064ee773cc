// Relied upon: a connect4 or connect6 program that changes only the port of a loopback
// destination leads a socket to another port, and a getpeername program changes it back, in
// getpeername(2) and in the address that accept(2) gives. The name that a listener's
// getsockname shows is that of the socket itself on both ends. Port 0 as a destination is
// ECONNREFUSED for TCP at once. The destinations 0.0.0.0 and :: come to the program as they
// were written, and lead to the loopback.
//
// A socket without a port, whose source bpf_bind() makes 127.0.0.1 or ::1, reaches every
// address of its own host from there.
//
// Since: Linux 5.8 (getpeername programs).
// By: bpf (private ports of a loopback on the host).

package kernel

import (
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// renamePort changes the port of the context where it is from.
func renamePort(from, to uint16) asm.Instructions {
	return program(1, asm.Instructions{
		asm.LoadMem(asm.R2, asm.R6, ctxPort, asm.Word),
		asm.JNE.Imm(asm.R2, int32(from>>8|from<<8&0xff00), "other"),
		asm.Mov.Imm(asm.R2, int32(to>>8|to<<8&0xff00)),
		asm.StoreMem(asm.R6, ctxPort, asm.R2, asm.Word),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("other"),
	})
}

// inBoth attaches a program for both families.
func inBoth(t *testing.T, cg *cgroup, four, six ebpf.AttachType, insns func() asm.Instructions) {
	t.Helper()
	attach(t, cg, four, insns())
	attach(t, cg, six, insns())
}

func peerOf(t *testing.T, fd int) string {
	t.Helper()
	sa, err := unix.Getpeername(fd)
	try(t, "getpeername", err)
	return addrString(sa)
}

func TestPortOfDestinationIsRenamed(t *testing.T) {
	enterNetns(t)
	cg := newCgroup(t)
	inBoth(t, cg, ebpf.AttachCGroupInet4Connect, ebpf.AttachCGroupInet6Connect, func() asm.Instructions { return renamePort(80, 20080) })
	inBoth(t, cg, ebpf.AttachCgroupInet4GetPeername, ebpf.AttachCgroupInet6GetPeername, func() asm.Instructions { return renamePort(20080, 80) })
	for _, c := range []struct {
		name             string
		domain, typ      int
		listener, to, at string
		only             int // V6ONLY of the listener
	}{
		{"IPv4", unix.AF_INET, unix.SOCK_STREAM, "127.0.0.1:20080", "127.0.0.1:80", "127.0.0.1:80", 0},
		{"another address", unix.AF_INET, unix.SOCK_STREAM, "127.0.0.53:20080", "127.0.0.53:80", "127.0.0.53:80", 0},
		{"wildcard", unix.AF_INET, unix.SOCK_STREAM, "0.0.0.0:20080", "0.0.0.0:80", "127.0.0.1:80", 0},
		{"IPv6", unix.AF_INET6, unix.SOCK_STREAM, "[::1]:20080", "[::1]:80", "[::1]:80", 1},
		{"IPv6 wildcard", unix.AF_INET6, unix.SOCK_STREAM, "[::]:20080", "[::]:80", "[::1]:80", 1},
		{"dual stack", unix.AF_INET, unix.SOCK_STREAM, "[::]:20080", "127.0.0.1:80", "127.0.0.1:80", 0},
		{"mapped", unix.AF_INET6, unix.SOCK_STREAM, "127.0.0.1:20080", "[::ffff:127.0.0.1]:80", "[::ffff:127.0.0.1]:80", 0},
		{"UDP over IPv4", unix.AF_INET, unix.SOCK_DGRAM, "127.0.0.1:20080", "127.0.0.1:80", "127.0.0.1:80", 0},
		{"UDP over IPv6", unix.AF_INET6, unix.SOCK_DGRAM, "[::1]:20080", "[::1]:80", "[::1]:80", 1},
	} {
		subtest(t, c.name, func(t *testing.T) {
			l := boundAt(t, c.typ, c.listener, c.only)
			fd := cg.socket(t, c.domain, c.typ, 0)
			try(t, "connect", unix.Connect(fd, sockaddr(c.to)))
			want(t, "peer", peerOf(t, fd), c.at)
			if c.typ == unix.SOCK_STREAM {
				_, from := accept(t, l)
				want(t, "source port", portIn(from), portIn(local(t, fd)))
			}
		})
	}
}

// boundAt is listenerAt for an IPv6 address that may be of both families.
func boundAt(t *testing.T, typ int, address string, only int) int {
	t.Helper()
	fd := socket(t, familyOf(address), typ, 0)
	// Connections that linger in TIME_WAIT are in nobody's way.
	try(t, "set SO_REUSEADDR", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	if familyOf(address) == unix.AF_INET6 {
		try(t, "set V6ONLY", unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, only))
	}
	try(t, "bind "+address, unix.Bind(fd, sockaddr(address)))
	if typ == unix.SOCK_STREAM {
		try(t, "listen", unix.Listen(fd, 16))
	}
	return fd
}

func TestPeerIsRenamedForAccept(t *testing.T) {
	enterNetns(t)
	cg := newCgroup(t)
	inBoth(t, cg, ebpf.AttachCgroupInet4GetPeername, ebpf.AttachCgroupInet6GetPeername, func() asm.Instructions { return renamePort(20090, 90) })
	for _, l := range loopbacks {
		subtest(t, l.name, func(t *testing.T) {
			var listener int
			cg.run(t, func() { listener = listenerAt(t, unix.SOCK_STREAM, l.address) })
			fd := socket(t, l.domain, unix.SOCK_STREAM, 0)
			from := "127.0.0.1:"
			if l.domain == unix.AF_INET6 {
				from = "[::1]:"
			}
			try(t, "bind", unix.Bind(fd, sockaddr(from+"20090")))
			try(t, "connect", unix.Connect(fd, sockaddr(l.address)))
			conn, peer := accept(t, listener)
			want(t, "address of accept", peer, from+"90")
			want(t, "getpeername", peerOf(t, conn), from+"90")
			want(t, "the client's name", local(t, fd), from+"20090")
		})
	}
}

func TestPortZeroIsRefused(t *testing.T) {
	enterNetns(t)
	cg := newCgroup(t)
	inBoth(t, cg, ebpf.AttachCGroupInet4Connect, ebpf.AttachCGroupInet6Connect, func() asm.Instructions { return renamePort(80, 0) })
	for _, l := range loopbacks {
		listenerAt(t, unix.SOCK_STREAM, l.address)
		fd := cg.socket(t, l.domain, unix.SOCK_STREAM, 0)
		want(t, l.name+": TCP", unix.Connect(fd, sockaddr(l.address)), error(unix.ECONNREFUSED))
		udp := cg.socket(t, l.domain, unix.SOCK_DGRAM, 0)
		try(t, l.name+": connect UDP", unix.Connect(udp, sockaddr(l.address)))
		_, err := unix.Write(udp, []byte("x"))
		try(t, l.name+": write", err)
		_, err = unix.Read(udp, make([]byte, 1))
		want(t, l.name+": UDP", err, error(unix.ECONNREFUSED))
	}
}

func TestLoopbackSourceReachesHostAddress(t *testing.T) {
	enterNetns(t)
	testkit.AddToLoopback(t, "198.51.100.1/32")
	testkit.AddToLoopback(t, "2001:db8::1/128")
	for _, c := range []struct{ source, listener string }{{"127.0.0.1", "198.51.100.1:80"}, {"::1", "[2001:db8::1]:80"}} {
		for _, typ := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM} {
			subtest(t, c.listener, func(t *testing.T) {
				l := listenerAt(t, typ, c.listener)
				cg := newCgroup(t)
				at := ebpf.AttachCGroupInet4Connect
				if familyOf(c.listener) == unix.AF_INET6 {
					at = ebpf.AttachCGroupInet6Connect
				}
				attach(t, cg, at, program(1, bindTo(c.source)))
				fd := cg.socket(t, familyOf(c.listener), typ, 0)
				try(t, "connect", unix.Connect(fd, sockaddr(c.listener)))
				want(t, "source", hostOf(local(t, fd)), c.source)
				_, err := unix.Write(fd, []byte("x"))
				try(t, "write", err)
				if typ == unix.SOCK_STREAM {
					l, _ = accept(t, l)
				}
				want(t, "length", datagram(t, l), 1)
			})
		}
	}
}

func familyOf(address string) int {
	if netip.MustParseAddrPort(address).Addr().Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func portIn(address string) uint16 { return netip.MustParseAddrPort(address).Port() }
