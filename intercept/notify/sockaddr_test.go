package notify

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
)

func sockaddrBytes(family uint16, rest ...byte) []byte {
	return append(binary.NativeEndian.AppendUint16(nil, family), rest...)
}

func TestParseSockaddr(t *testing.T) {
	in4 := sockaddrBytes(unix.AF_INET, 0, 80, 198, 51, 100, 2, 0, 0, 0, 0, 0, 0, 0, 0)
	in6 := append(sockaddrBytes(unix.AF_INET6, 0, 80, 0, 0, 0, 0), netip.MustParseAddr("2001:db8::2").AsSlice()...)
	any0 := sockaddrBytes(unix.AF_UNSPEC, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	some0 := sockaddrBytes(unix.AF_UNSPEC, 0, 80, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0)
	tests := []struct {
		name       string
		in         []byte
		want, bind string // empty: not taken
	}{
		{"IPv4", in4, "198.51.100.2:80", "198.51.100.2:80"},
		{"IPv4 with more behind it", append(in4, 1, 2, 3, 4), "198.51.100.2:80", "198.51.100.2:80"},
		{"IPv4 cut short", in4[:15], "", ""},
		{"IPv6 without scope", in6, "[2001:db8::2]:80", "[2001:db8::2]:80"},
		{"IPv6 with scope", append(in6, 1, 0, 0, 0), "[2001:db8::2]:80", "[2001:db8::2]:80"},
		{"IPv6 cut short", in6[:23], "", ""},
		{"unspecified family, wildcard", any0, "", "0.0.0.0:80"},
		{"unspecified family, address", some0, "", ""},
		{"unix", sockaddrBytes(unix.AF_UNIX, []byte("/run/some/socket/path")...), "", ""},
		{"nothing", nil, "", ""},
		{"one byte", []byte{2}, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			check := func(what, want string, got netip.AddrPort, ok bool) {
				if ok != (want != "") || (ok && got.String() != want) {
					t.Errorf("%s: %v, %v; want %q", what, got, ok, want)
				}
			}
			got, ok := sockaddr.Parse(tt.in)
			check("parseSockaddr", tt.want, got, ok)
			got, ok = parseBindAddr(tt.in)
			check("parseBindAddr", tt.bind, got, ok)
		})
	}
}

// What is taken has its family, port and address where the kernel reads them.
func FuzzParseSockaddr(f *testing.F) {
	f.Add(sockaddrBytes(unix.AF_INET, make([]byte, 14)...))
	f.Add(sockaddrBytes(unix.AF_INET6, make([]byte, 26)...))
	f.Add(sockaddrBytes(unix.AF_UNSPEC, make([]byte, 14)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, ok := sockaddr.Parse(b)
		if !ok {
			return
		}
		if got.Port() != uint16(b[2])<<8|uint16(b[3]) {
			t.Errorf("port %d of % x", got.Port(), b)
		}
		family, offset := uint16(unix.AF_INET6), 8
		if got.Addr().Is4() {
			family, offset = unix.AF_INET, 4
		}
		addr := got.Addr().AsSlice()
		if binary.NativeEndian.Uint16(b) != family || string(b[offset:offset+len(addr)]) != string(addr) {
			t.Errorf("%v of % x", got, b)
		}
	})
}
