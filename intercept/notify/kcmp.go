package notify

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// kcmp is kcmp(2) with a struct as its second index. The result 0 means equal.
func kcmp[T any](pid1, pid2, typ, index int, slot *T) (int, unix.Errno) {
	r, _, errno := unix.RawSyscall6(unix.SYS_KCMP, uintptr(pid1), uintptr(pid2), uintptr(typ),
		uintptr(index), uintptr(unsafe.Pointer(slot)), 0)
	return int(r), errno
}
