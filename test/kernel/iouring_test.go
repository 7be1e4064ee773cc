// Relied upon: a seccomp filter can answer io_uring_setup(2) with ENOSYS, which
// a program takes for a kernel without io_uring; the calls of a ring would
// not pass the filter.
//
// Since: Linux 3.5 (filters), 5.1 (io_uring).
// By: intercept/filter.

package kernel

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func init() {
	roles["io_uring"] = func(c *child) {
		setup := func() {
			var params [120]byte // struct io_uring_params
			_, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&params)), 0)
			c.say("%d", errno)
		}
		setup()
		_, err := installFilter(0, unix.SECCOMP_RET_ERRNO|uint32(unix.ENOSYS), unix.SYS_IO_URING_SETUP)
		c.check("install filter", err)
		setup()
	}
}

func TestFilterHidesIOUring(t *testing.T) {
	p := start(t, "io_uring", nil)
	var before, after int
	p.hearInts(t, &before)
	if before != 0 {
		t.Skipf("skip: needs io_uring: %v", unix.Errno(before))
	}
	p.hearInts(t, &after)
	want(t, "io_uring_setup", unix.Errno(after), unix.ENOSYS)
}
