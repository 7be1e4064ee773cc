package kernel

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// withCapabilities runs fn with these effective capabilities and no others. The
// test is bound to its thread already.
func withCapabilities(t *testing.T, capabilities []int, fn func()) {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var before [2]unix.CapUserData
	try(t, "read capabilities", unix.Capget(&header, &before[0]))
	during := before
	during[0].Effective, during[1].Effective = 0, 0
	for _, c := range capabilities {
		during[c/32].Effective |= 1 << (c % 32)
	}
	try(t, "drop capabilities", unix.Capset(&header, &during[0]))
	defer func() { try(t, "restore capabilities", unix.Capset(&header, &before[0])) }()
	fn()
}

// linuxIs says whether the kernel is this version or a later one.
func linuxIs(t *testing.T, major, minor int) bool {
	t.Helper()
	var name unix.Utsname
	try(t, "uname", unix.Uname(&name))
	var gotMajor, gotMinor int
	_, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &gotMajor, &gotMinor)
	try(t, "read release", err)
	return gotMajor > major || gotMajor == major && gotMinor >= minor
}
