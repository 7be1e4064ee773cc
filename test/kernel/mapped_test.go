// Relied upon: which address program runs for IPv4 in an AF_INET6 socket.
//
//	call                                program
//	connect, mapped address, TCP, UDP   connect6, which sees the mapped address
//	connect, struct sockaddr_in, UDP    connect4
//	connect, struct sockaddr_in, TCP    none (EINVAL); in a sockaddr_in6's size
//	                                    connect6, then EAFNOSUPPORT all the same
//	sendto, mapped or sockaddr_in, UDP  sendmsg4, which sees the IPv4 address
//	bind, mapped address                bind6
//
// A policy for IPv4 destinations has to be in both programs of each pair.
//
// Since: Linux 4.17 (connect), 4.18 (sendmsg).
// By: bpf (the same verdict for both spellings of an address).

package kernel

import (
	"net/netip"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// connectIPv4 connects to a struct sockaddr_in of the given size, which x/sys
// would refuse for an AF_INET6 socket.
func connectIPv4(fd int, address string, size uintptr) error {
	var storage unix.RawSockaddrAny
	ap := netip.MustParseAddrPort(address)
	port := ap.Port()
	*(*unix.RawSockaddrInet4)(unsafe.Pointer(&storage)) = unix.RawSockaddrInet4{
		Family: unix.AF_INET, Port: port<<8 | port>>8, Addr: ap.Addr().As4(),
	}
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&storage)), size)
	if errno != 0 {
		return errno
	}
	return nil
}

func TestProgramsForIPv4InIPv6Sockets(t *testing.T) {
	enterNetns(t)
	listenerAt(t, unix.SOCK_STREAM, "127.0.0.1:80")
	cg := newCgroup(t)
	bind4, bind6 := watch(t, cg, ebpf.AttachCGroupInet4Bind), watch(t, cg, ebpf.AttachCGroupInet6Bind)
	connect4 := watch(t, cg, ebpf.AttachCGroupInet4Connect, ctxIP4)
	connect6 := watch(t, cg, ebpf.AttachCGroupInet6Connect, ctxIP6+8, ctxIP6+12)
	sendmsg4 := watch(t, cg, ebpf.AttachCGroupUDP4Sendmsg, ctxIP4)
	sendmsg6 := watch(t, cg, ebpf.AttachCGroupUDP6Sendmsg)

	const mapped, plain = "[::ffff:127.0.0.1]:80", "127.0.0.1:80"
	tcp := func() int { return cg.socket(t, unix.AF_INET6, unix.SOCK_STREAM, 0) }
	udp := func() int { return cg.socket(t, unix.AF_INET6, unix.SOCK_DGRAM, 0) }

	try(t, "connect TCP", unix.Connect(tcp(), sockaddr(mapped)))
	want(t, "mapped prefix that connect6 sees", connect6.ip4(t, 1), "0.0.255.255")
	want(t, "mapped address that connect6 sees", connect6.ip4(t, 2), "127.0.0.1")
	want(t, "connect TCP to mapped: connect6", connect6.runs(t), 1)
	try(t, "connect UDP", unix.Connect(udp(), sockaddr(mapped)))
	want(t, "connect UDP to mapped: connect6", connect6.runs(t), 1)
	want(t, "connect to mapped: connect4", connect4.runs(t), 0)

	try(t, "connect UDP", connectIPv4(udp(), plain, unix.SizeofSockaddrInet4))
	want(t, "address that connect4 sees", connect4.ip4(t, 1), "127.0.0.1")
	want(t, "connect UDP to sockaddr_in: connect4", connect4.runs(t), 1)
	want(t, "connect UDP to sockaddr_in: connect6", connect6.runs(t), 0)
	want(t, "connect TCP to sockaddr_in",
		connectIPv4(tcp(), plain, unix.SizeofSockaddrInet4), error(unix.EINVAL))
	want(t, "connect TCP to sockaddr_in: connect6", connect6.runs(t), 0)
	want(t, "connect TCP to long sockaddr_in",
		connectIPv4(tcp(), plain, unix.SizeofSockaddrInet6), error(unix.EAFNOSUPPORT))
	want(t, "connect TCP to long sockaddr_in: connect6", connect6.runs(t), 1)

	try(t, "sendto", unix.Sendto(udp(), nil, 0, sockaddr(mapped)))
	want(t, "address that sendmsg4 sees", sendmsg4.ip4(t, 1), "127.0.0.1")
	want(t, "sendto mapped: sendmsg4", sendmsg4.runs(t), 1)
	try(t, "sendto", unix.Sendto(udp(), nil, 0, sockaddr(plain)))
	want(t, "sendto sockaddr_in: sendmsg4", sendmsg4.runs(t), 1)
	want(t, "sendto: sendmsg6", sendmsg6.runs(t), 0)

	try(t, "bind", unix.Bind(tcp(), sockaddr("[::ffff:127.0.0.2]:0")))
	want(t, "bind mapped: bind6", bind6.runs(t), 1)
	want(t, "bind mapped: bind4", bind4.runs(t), 0)
}
