//go:build !amd64

package testkit

import "golang.org/x/sys/unix"

// Inject has another process make a system call. It is there for amd64.
func Inject(t TB, _ int, _ uintptr, _ ...uint64) unix.Errno {
	t.Helper()
	t.Skipf("skip: needs amd64, whose registers the test kit knows")
	return 0
}
