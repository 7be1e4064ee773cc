// Package seccomp receives and answers calls that a filter hands over (seccomp_unotify(2)).
//
// It installs no filter, and decides nothing. It needs Linux 5.9.
package seccomp

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel's structures, linux/seccomp.h.

// Notification is a call that waits for an answer.
type Notification struct {
	ID      uint64
	Thread  uint32
	flags   uint32
	Number  int32 // of the system call
	arch    uint32
	pointer uint64 // to the instruction
	Args    [6]uint64
}

// Response is an answer.
type Response struct {
	ID    uint64
	Value int64
	Errno int32 // negative
	Flags uint32
}

// AddFD is a file for the program that waits.
type AddFD struct {
	ID       uint64
	Flags    uint32
	File     uint32
	Number   uint32 // with SECCOMP_ADDFD_FLAG_SETFD
	NewFlags uint32 // O_CLOEXEC, or 0
}

// ErrStale says that the call does not wait any more: its thread was killed, or a signal interrupted
// it. Nobody is left to answer.
var ErrStale = errors.New("the call is no longer waiting")

// Listener is the file by which the kernel hands over trapped calls.
type Listener int

// Receive returns the next call. At the end of the last program under the filter, the error is
// ENOENT.
func (l Listener) Receive() (*Notification, error) {
	for {
		list := []unix.PollFd{{Fd: int32(l), Events: unix.POLLIN}}
		if _, err := unix.Poll(list, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return nil, err
		}
		if list[0].Revents&unix.POLLIN == 0 {
			if list[0].Revents&unix.POLLHUP != 0 {
				return nil, unix.ENOENT
			}
			continue // a signal: EINTR, or POLLERR. To receive now might wait for ever
		}
		n := new(Notification)
		_, err := l.ioctl(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(n))
		if err == nil {
			return n, nil
		}
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, ErrStale) { // stale: the caller was killed meanwhile
			return nil, fmt.Errorf("receive a call: %w", err)
		}
	}
}

// Valid tells whether a call waits. If so, what was found by its thread's number before is that
// thread's.
func (l Listener) Valid(id uint64) bool {
	_, err := l.again(unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&id))
	return err == nil
}

// Answer ends a call.
func (l Listener) Answer(r *Response) error {
	_, err := l.again(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(r))
	return err
}

// Add installs a file in the program, and returns its number there.
func (l Listener) Add(a *AddFD) (int, error) {
	return l.again(unix.SECCOMP_IOCTL_NOTIF_ADDFD, unsafe.Pointer(a))
}

// again makes an ioctl that waits for a lock of the listener. A signal that interrupts it, as Go sends them, leaves the
// program as it was (kernel/seccomp.c takes the lock by mutex_lock_interruptible first).
func (l Listener) again(request uint, arg unsafe.Pointer) (int, error) {
	for {
		r, err := l.ioctl(request, arg)
		if !errors.Is(err, unix.EINTR) {
			return r, err
		}
	}
}

// AddAndAnswer installs a file in the program and answers its call with the number. On an error the program
// does not know of the file. (Before Linux 5.14, a signal in between leaves it one that it does not know of.) A
// signal that interrupted the ioctl would leave a call that is answered by 0 (see docs/DECISIONS.md), so there
// is none.
func (l Listener) AddAndAnswer(a *AddFD) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, former unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = math.MaxUint64
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &former); err != nil {
		return errors.New("block signals: " + err.Error()) // which is not the program's
	}
	defer unix.PthreadSigmask(unix.SIG_SETMASK, &former, nil) //nolint:errcheck // it did just now
	a.Flags |= unix.SECCOMP_ADDFD_FLAG_SEND
	_, err := l.ioctl(unix.SECCOMP_IOCTL_NOTIF_ADDFD, unsafe.Pointer(a))
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	a.Flags &^= unix.SECCOMP_ADDFD_FLAG_SEND // Linux before 5.14
	number, err := l.ioctl(unix.SECCOMP_IOCTL_NOTIF_ADDFD, unsafe.Pointer(a))
	if err != nil {
		return err
	}
	return l.Answer(&Response{ID: a.ID, Value: int64(number)})
}

func (l Listener) ioctl(request uint, arg unsafe.Pointer) (int, error) {
	r, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(l), uintptr(request), uintptr(arg))
	switch errno {
	case 0:
		return int(r), nil
	case unix.ENOENT, unix.EINPROGRESS, unix.ESRCH: // ESRCH: it ended while a file was installed
		return -1, ErrStale
	}
	return -1, errno
}
