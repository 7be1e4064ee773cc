package enforcer

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// A TCP socket becomes none of another protocol's, where the kernel programs are not asked about its
// options. kTLS is the kernel's to refuse.
func TestProtocolsAboveTCP(t *testing.T) {
	containers(t, func(_ uint64, list []*contained) {
		for name, refused := range map[string]bool{"smc": true, "smc\x00": true, "espintcp": true, "tlsx": true, "tls\x00": false, "tls": false} {
			s := list[0].socket(t, unix.SOCK_STREAM)
			if err := unix.SetsockoptString(s, unix.IPPROTO_TCP, unix.TCP_ULP, name); errors.Is(err, unix.EPERM) != refused {
				t.Errorf("TCP_ULP %q: %v; is it to be EPERM: %v", name, err, refused)
			}
		}
	}, nil)
}
