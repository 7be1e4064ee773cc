package notify

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
)

// parseBindAddr is sockaddr.Parse for bind(2), where an IPv4 socket takes the
// wildcard with AF_UNSPEC too (ip(7), "address family").
func parseBindAddr(b []byte) (netip.AddrPort, bool) {
	addr, ok := sockaddr.Parse(b)
	if !ok && len(b) >= sockaddr.Min4 && binary.NativeEndian.Uint16(b) == unix.AF_UNSPEC && [4]byte(b[4:8]) == [4]byte{} {
		return netip.AddrPortFrom(netip.IPv4Unspecified(), binary.BigEndian.Uint16(b[2:])), true
	}
	return addr, ok
}
