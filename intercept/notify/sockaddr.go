package notify

import (
	"encoding/binary"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
)

// The shortest sockaddrs that the kernel takes for each family: struct
// sockaddr_in, and RFC 2133's sockaddr_in6, which had no scope.
const (
	sockaddrIn4Min = 16
	sockaddrIn6Min = 24
)

// parseSockaddr reads an IP destination out of what a program passed. What it does
// not take is the kernel's to refuse, or not for IP sockets.
func parseSockaddr(b []byte) (netip.AddrPort, bool) {
	if len(b) < sockaddrIn4Min {
		return netip.AddrPort{}, false
	}
	port := binary.BigEndian.Uint16(b[2:])
	switch binary.NativeEndian.Uint16(b) {
	case unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), port), true
	case unix.AF_INET6:
		if len(b) >= sockaddrIn6Min {
			return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])), port), true
		}
	}
	return netip.AddrPort{}, false
}

// sockaddrOf is the struct sockaddr_in or sockaddr_in6 of a name, whose zone is a number.
func sockaddrOf(name netip.AddrPort) []byte {
	addr := name.Addr()
	if addr.Is4() {
		sa := make([]byte, unix.SizeofSockaddrInet4)
		binary.NativeEndian.PutUint16(sa, unix.AF_INET)
		binary.BigEndian.PutUint16(sa[2:], name.Port())
		copy(sa[4:], addr.AsSlice())
		return sa
	}
	sa := make([]byte, unix.SizeofSockaddrInet6)
	binary.NativeEndian.PutUint16(sa, unix.AF_INET6)
	binary.BigEndian.PutUint16(sa[2:], name.Port())
	copy(sa[8:], addr.AsSlice())
	scope, _ := strconv.ParseUint(addr.Zone(), 10, 32) // none is 0
	binary.NativeEndian.PutUint32(sa[24:], uint32(scope))
	return sa
}

// parseBindAddr is parseSockaddr for bind(2), where an IPv4 socket takes the
// wildcard with AF_UNSPEC too (ip(7), "address family").
func parseBindAddr(b []byte) (netip.AddrPort, bool) {
	addr, ok := parseSockaddr(b)
	if !ok && len(b) >= sockaddrIn4Min && binary.NativeEndian.Uint16(b) == unix.AF_UNSPEC && [4]byte(b[4:8]) == [4]byte{} {
		return netip.AddrPortFrom(netip.IPv4Unspecified(), binary.BigEndian.Uint16(b[2:])), true
	}
	return addr, ok
}
