package guest

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel's structures, linux/seccomp.h.

type notification struct {
	id    uint64
	tid   uint32
	flags uint32
	nr    int32
	arch  uint32
	ip    uint64
	args  [6]uint64
}

type response struct {
	id    uint64
	value int64
	errno int32 // negative
	flags uint32
}

type addFD struct {
	id         uint64
	flags      uint32
	srcFD      uint32
	newFD      uint32
	newFDFlags uint32
}

// errStale says that the call does not wait any more: its thread was killed, or a signal interrupted
// it. Nobody is left to answer.
var errStale = errors.New("the call is no longer waiting")

// listener is the file by which the kernel hands over trapped calls (seccomp_unotify(2)).
type listener int

// receive returns the next call. At the end of the last program under the filter, the error is
// ENOENT.
func (l listener) receive() (*notification, error) {
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
		n := new(notification)
		_, err := l.ioctl(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(n))
		if err == nil {
			return n, nil
		}
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, errStale) { // stale: the caller was killed meanwhile
			return nil, fmt.Errorf("receive a call: %w", err)
		}
	}
}

// valid tells whether a call waits. If so, what was found by its thread's number before is that
// thread's.
func (l listener) valid(id uint64) bool {
	_, err := l.ioctl(unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&id))
	return err == nil
}

func (l listener) answer(r *response) error {
	_, err := l.ioctl(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(r))
	return err
}

// add installs a file in the program, and returns its number there.
func (l listener) add(a *addFD) (int, error) {
	for {
		number, err := l.ioctl(unix.SECCOMP_IOCTL_NOTIF_ADDFD, unsafe.Pointer(a))
		if !errors.Is(err, unix.EINTR) {
			return number, err
		}
	}
}

// addAndAnswer installs a file in the program and answers its call with the number. On an error the program
// does not know of the file. (Before Linux 5.14, a signal in between leaves it one that it does not know of.) A
// signal that interrupted the ioctl would leave a call that is answered by 0 (see docs/DECISIONS.md), so there
// is none.
func (l listener) addAndAnswer(a *addFD) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, former unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = math.MaxUint64
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &former); err != nil {
		return faultOf(err)
	}
	defer unix.PthreadSigmask(unix.SIG_SETMASK, &former, nil) //nolint:errcheck // it did just now
	a.flags |= unix.SECCOMP_ADDFD_FLAG_SEND
	_, err := l.ioctl(unix.SECCOMP_IOCTL_NOTIF_ADDFD, unsafe.Pointer(a))
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	a.flags &^= unix.SECCOMP_ADDFD_FLAG_SEND // Linux before 5.14
	number, err := l.ioctl(unix.SECCOMP_IOCTL_NOTIF_ADDFD, unsafe.Pointer(a))
	if err != nil {
		return err
	}
	return l.answer(&response{id: a.id, value: int64(number)})
}

func (l listener) ioctl(request uint, arg unsafe.Pointer) (int, error) {
	r, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(l), uintptr(request), uintptr(arg))
	switch errno {
	case 0:
		return int(r), nil
	case unix.ENOENT, unix.EINPROGRESS, unix.ESRCH: // ESRCH: it ended while a file was installed
		return -1, errStale
	}
	return -1, errno
}

// Offsets in struct seccomp_data.
const (
	offNumber = 0
	offArch   = 4
	offArgs   = 16
)

// trap is a call that the supervisor sees. With levels, only for these levels of options; SOL_SOCKET's
// are only those of names.
type trap struct {
	nr    uint32
	names []uint32 // of SOL_SOCKET; nil: the call has no level
}

// traps are the calls of supervisor.handle. Options of SOL_SOCKET that are not listed are the vsock
// socket's own.
var traps = []trap{
	{nr: unix.SYS_CONNECT},
	{nr: unix.SYS_BIND},
	{nr: unix.SYS_LISTEN},
	{nr: unix.SYS_ACCEPT},
	{nr: unix.SYS_ACCEPT4},
	{nr: unix.SYS_GETSOCKNAME},
	{nr: unix.SYS_GETPEERNAME},
	{unix.SYS_GETSOCKOPT, []uint32{unix.SO_ERROR, unix.SO_DOMAIN, unix.SO_PROTOCOL, unix.SO_KEEPALIVE}},
	{unix.SYS_SETSOCKOPT, []uint32{unix.SO_KEEPALIVE}},
}

// levels are those of IP.
var levels = []uint32{unix.SOL_IP, unix.SOL_IPV6, unix.SOL_TCP}

const ioUringSetup = 425

// filter returns the program that traps calls. Calls of other ABIs are not trapped: such programs
// have the guest's own network. io_uring is refused, because its requests pass no filter.
func filter() []unix.SockFilter {
	p := []unix.SockFilter{
		load(offArch), jump(archToken, 1, 0), ret(unix.SECCOMP_RET_ALLOW),
		load(offNumber), jump(ioUringSetup, 0, 1), ret(unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)),
	}
	for _, t := range traps {
		body := []unix.SockFilter{ret(unix.SECCOMP_RET_USER_NOTIF)}
		if t.names != nil {
			body = []unix.SockFilter{load(offArgs + 8)}
			for _, level := range levels {
				body = append(body, jump(level, 0, 1), ret(unix.SECCOMP_RET_USER_NOTIF))
			}
			body = append(body, jump(unix.SOL_SOCKET, 1, 0), ret(unix.SECCOMP_RET_ALLOW), load(offArgs+16))
			for _, name := range t.names {
				body = append(body, jump(name, 0, 1), ret(unix.SECCOMP_RET_USER_NOTIF))
			}
			body = append(body, ret(unix.SECCOMP_RET_ALLOW))
		}
		p = append(p, jump(t.nr, 0, uint8(len(body))))
		p = append(p, body...)
	}
	return append(p, ret(unix.SECCOMP_RET_ALLOW))
}

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

func jump(k uint32, ifTrue, ifFalse uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: ifTrue, Jf: ifFalse, K: k}
}

func ret(value uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: value}
}

// install puts the calling thread under the filter, and returns the listener.
func install() (listener, error) {
	code := filter()
	prog := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	fd, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return -1, fmt.Errorf("install seccomp filter: %w", errno)
	}
	return listener(fd), nil
}
