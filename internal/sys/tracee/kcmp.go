package tracee

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// kcmp is kcmp(2) with a struct as its second index. The result 0 means equal.
//
// It takes the lock of an epoll, which a program may hold for as long as it likes. So Go's
// runtime has to know that the call may wait: RawSyscall would stop all of this process.
func kcmp[T any](pid1, pid2, typ, index int, slot *T) (int, unix.Errno) {
	r, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(pid1), uintptr(pid2), uintptr(typ),
		uintptr(index), uintptr(unsafe.Pointer(slot)), 0)
	return int(r), errno
}
