// Package sockaddr turns IP socket addresses into the kernel's forms and back: the bytes of struct
// sockaddr_in and sockaddr_in6 that a program passes, and unix.Sockaddr for calls of our own. It makes
// no system call, needs no privileges, and runs on any Linux.
package sockaddr

import (
	"encoding/binary"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
)

// The shortest sockaddrs, in bytes, that the kernel takes for each family: struct sockaddr_in, and RFC
// 2133's sockaddr_in6, which had no scope.
const (
	Min4 = 16
	Min6 = 24
)

// Parse reads an IP address out of the bytes that a program passed. It returns false for every other
// family and for bytes that are too few: those are the kernel's to refuse, or not for IP sockets. The
// scope of an IPv6 address is left out.
func Parse(b []byte) (netip.AddrPort, bool) {
	if len(b) < Min4 {
		return netip.AddrPort{}, false
	}
	port := binary.BigEndian.Uint16(b[2:])
	switch binary.NativeEndian.Uint16(b) {
	case unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), port), true
	case unix.AF_INET6:
		if len(b) >= Min6 {
			return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])), port), true
		}
	}
	return netip.AddrPort{}, false
}

// Bytes returns the struct sockaddr_in or sockaddr_in6 of a name, whose zone is a number or none.
func Bytes(name netip.AddrPort) []byte {
	addr := name.Addr()
	if addr.Is4() {
		b := make([]byte, unix.SizeofSockaddrInet4)
		binary.NativeEndian.PutUint16(b, unix.AF_INET)
		binary.BigEndian.PutUint16(b[2:], name.Port())
		copy(b[4:], addr.AsSlice())
		return b
	}
	b := make([]byte, unix.SizeofSockaddrInet6)
	binary.NativeEndian.PutUint16(b, unix.AF_INET6)
	binary.BigEndian.PutUint16(b[2:], name.Port())
	copy(b[8:], addr.AsSlice())
	scope, _ := strconv.ParseUint(addr.Zone(), 10, 32) // none is 0
	binary.NativeEndian.PutUint32(b[24:], uint32(scope))
	return b
}

// Of returns a name for calls of package unix. It leaves out the zone.
func Of(name netip.AddrPort) unix.Sockaddr {
	if name.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(name.Port()), Addr: name.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(name.Port()), Addr: name.Addr().As16()}
}
