package notify

import (
	"errors"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel's structures, linux/seccomp.h.

type seccompData struct {
	number             int32
	arch               uint32
	instructionPointer uint64
	args               [6]uint64
}

type notification struct {
	id    uint64
	pid   uint32
	flags uint32
	data  seccompData
}

type response struct {
	id    uint64
	value int64
	errno int32 // negative
	flags uint32
}

type addFd struct {
	id         uint64
	flags      uint32
	srcFd      uint32
	newFd      uint32
	newFdFlags uint32
}

// Request codes that x/sys has under names that differ by architecture.
const (
	ioctlRecv     = unix.SECCOMP_IOCTL_NOTIF_RECV
	ioctlSend     = unix.SECCOMP_IOCTL_NOTIF_SEND
	ioctlIDValid  = unix.SECCOMP_IOCTL_NOTIF_ID_VALID
	ioctlAddFd    = unix.SECCOMP_IOCTL_NOTIF_ADDFD
	ioctlSetFlags = unix.SECCOMP_IOCTL_NOTIF_SET_FLAGS
)

// errStale says that the call a notification is about is no longer waiting: its
// thread was killed or interrupted. There is nobody left to answer.
var errStale = errors.New("the call is no longer waiting")

// listener is the file by which seccomp asks (seccomp_unotify(2)).
type listener struct {
	fd int
}

// receive waits for a notification. It is interrupted by any signal to its
// thread.
func (l listener) receive(n *notification) error {
	*n = notification{} // the kernel wants it zeroed
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(l.fd), ioctlRecv, uintptr(unsafe.Pointer(n)))
	if errno != 0 {
		return errno
	}
	return nil
}

// valid tells whether the call of a notification still waits, and so whether
// what was read in the meantime by its thread's id was that thread's.
func (l listener) valid(id uint64) bool {
	_, _, errno := unix.RawSyscall(unix.SYS_IOCTL, uintptr(l.fd), ioctlIDValid, uintptr(unsafe.Pointer(&id)))
	return errno == 0
}

// abandoned tells whether the last process that the filter is on is gone.
func (l listener) abandoned() bool {
	fds := []unix.PollFd{{Fd: int32(l.fd)}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0 && fds[0].Revents&unix.POLLHUP != 0
}

func (l listener) send(r *response) error {
	_, _, errno := unix.RawSyscall(unix.SYS_IOCTL, uintptr(l.fd), ioctlSend, uintptr(unsafe.Pointer(r)))
	return staleIfGone(errno)
}

// addFd installs a file in the program. With SECCOMP_ADDFD_FLAG_SEND the number
// becomes the call's result, at once (5.14, kernel commit 0ae71c7720e3).
func (l listener) addFd(a *addFd) error {
	_, _, errno := unix.RawSyscall(unix.SYS_IOCTL, uintptr(l.fd), ioctlAddFd, uintptr(unsafe.Pointer(a)))
	return staleIfGone(errno)
}

// wakeSynchronously asks the kernel to run the supervisor on the caller's CPU
// at once, and back (6.6, kernel commit 48a1084a8b74). A hint only.
func (l listener) wakeSynchronously() {
	_, _, _ = unix.RawSyscall(unix.SYS_IOCTL, uintptr(l.fd), ioctlSetFlags, unix.SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP)
}

func staleIfGone(errno unix.Errno) error {
	switch errno {
	case 0:
		return nil
	case unix.ENOENT, unix.EINPROGRESS:
		return errStale
	}
	return errno
}

// readMemory reads up to len(buf) bytes of a thread's memory and returns how
// many there were before the first that is not mapped. The caller then has to
// ask whether the notification is still valid: the thread's id may be another's
// by now.
func readMemory(tid int, addr uint64, buf []byte) int {
	if len(buf) == 0 {
		return 0
	}
	local := unix.Iovec{Base: &buf[0]}
	local.SetLen(len(buf))
	remote := unix.RemoteIovec{Base: uintptr(addr), Len: len(buf)}
	// Not a raw system call: the memory may be a file of a file system that
	// answers when it likes.
	n, _, errno := unix.Syscall6(unix.SYS_PROCESS_VM_READV, uintptr(tid),
		uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1, 0)
	runtime.KeepAlive(buf)
	if errno != 0 {
		return 0
	}
	return int(n)
}
