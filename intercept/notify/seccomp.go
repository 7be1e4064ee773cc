package notify

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel's structures, linux/seccomp.h.

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

// errStale says that the call a notification is about is no longer waiting: its
// thread was killed or interrupted. There is nobody left to answer.
var errStale = errors.New("the call is no longer waiting")

// listener is the file by which seccomp takes answers (seccomp_unotify(2)).
type listener struct {
	fd int
}

// valid tells whether the call of a notification still waits, and so whether
// what was found in the meantime by its thread's id was that thread's.
func (l listener) valid(id uint64) bool {
	return l.ioctl(unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&id)) == nil
}

func (l listener) send(r *response) error {
	return l.ioctl(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(r))
}

// addFd installs a file in the program. A signal that interrupts it leaves the
// program as it was, and Go's have it done again: without
// SECCOMP_ADDFD_FLAG_SEND there is no reply that could go lost.
func (l listener) addFd(a *addFd) (number int, err error) {
	for {
		number, err = l.ask(unix.SECCOMP_IOCTL_NOTIF_ADDFD, unsafe.Pointer(a))
		if !errors.Is(err, unix.EINTR) {
			return number, err
		}
	}
}

func (l listener) ioctl(request uint, arg unsafe.Pointer) error {
	_, err := l.ask(request, arg)
	return err
}

func (l listener) ask(request uint, arg unsafe.Pointer) (int, error) {
	r, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(l.fd), uintptr(request), uintptr(arg))
	switch errno {
	case 0:
		return int(r), nil
	case unix.ENOENT, unix.EINPROGRESS:
		return -1, errStale
	}
	return -1, errno
}
