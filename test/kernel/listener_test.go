package kernel

import (
	"errors"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// listener is a seccomp listener, used as a supervisor does.
type listener int

// struct seccomp_notif, seccomp_notif_resp and seccomp_notif_addfd.
type (
	notification struct {
		id    uint64
		pid   uint32 // of the thread
		flags uint32
		nr    int32
		arch  uint32
		ip    uint64
		args  [6]uint64
	}
	answer struct {
		id    uint64
		val   int64
		errno int32
		flags uint32
	}
	addfd struct {
		id         uint64
		flags      uint32
		srcfd      uint32
		newfd      uint32
		newfdFlags uint32
	}
)

func (l listener) ioctl(request uint, arg unsafe.Pointer) (int, error) {
	r, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(l), uintptr(request), uintptr(arg))
	if errno != 0 {
		return -1, errno
	}
	return int(r), nil
}

// receive blocks until there is a notification.
func (l listener) receive() (n notification, err error) {
	_, err = l.ioctl(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n))
	return n, err
}

// next is the next notification. The runtime's own signals may interrupt.
func (l listener) next(t *testing.T) notification {
	t.Helper()
	if events := l.poll(t, int(testkit.Patience.Milliseconds())); events != unix.POLLIN {
		t.Fatalf("no notification within %v, but events %#x", testkit.Patience, events)
	}
	for {
		n, err := l.receive()
		if !errors.Is(err, unix.EINTR) {
			try(t, "receive notification", err)
			return n
		}
	}
}

// poll waits for events of the listener: POLLIN for a notification that nobody
// received yet, POLLHUP once no process is left that uses the filter.
func (l listener) poll(t *testing.T, milliseconds int) int16 {
	t.Helper()
	fds := []unix.PollFd{{Fd: int32(l), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(fds, milliseconds)
		if !errors.Is(err, unix.EINTR) {
			try(t, "poll", err)
			return fds[0].Revents
		}
	}
}

func (l listener) send(a answer) error {
	_, err := l.ioctl(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&a))
	return err
}

// proceed lets the caller's system call run.
func (l listener) proceed(t *testing.T, n notification) {
	t.Helper()
	try(t, "continue", l.send(answer{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}))
}

// add puts a file into the caller's table, and returns its number there.
func (l listener) add(a addfd) (int, error) {
	return l.ioctl(unix.SECCOMP_IOCTL_NOTIF_ADDFD, unsafe.Pointer(&a))
}

func (l listener) valid(n notification) error {
	_, err := l.ioctl(unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&n.id))
	return err
}
