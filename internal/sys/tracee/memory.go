// Package tracee reads and writes the memory of threads that wait in a trapped call (seccomp_unotify(2)),
// and lists their descriptors.
//
// It answers no calls. A thread's number may be another's by now: after each use of it the caller has to ask
// whether the call still waits. It needs CAP_SYS_PTRACE over the thread, or to be of its user; any Linux.
package tracee

import (
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// Memory is the memory of a thread. If it is opened before the check that the thread's call waits, it is the
// caller's and stays so. When the caller is killed or executes another program, it is nobody's memory any
// more.
//
// The program may change a value after it was read. So each value is to be read once, and only the value
// read counts. A read or a write may take for ever, if the program's memory does (userfaultfd, a file of a
// slow file system).
type Memory struct {
	fd int
}

// ErrFault says that the program's pointer is invalid.
var ErrFault = fmt.Errorf("bad address in the program: %w", unix.EFAULT)

// OpenMemory opens the memory of a thread.
func OpenMemory(tid int) (*Memory, error) {
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/mem", tid), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open memory of thread %d: %w", tid, err)
	}
	return &Memory{fd}, nil
}

// File is the descriptor of the memory's file.
func (m *Memory) File() int { return m.fd }

// Close closes the file.
func (m *Memory) Close() { unix.Close(m.fd) }

// Read reads bytes at an address. If they are not all there, the error is ErrFault.
func (m *Memory) Read(at uint64, b []byte) error { return transfer(m.fd, unix.Pread, at, b) }

// Write writes bytes at an address. If it cannot write all of them, the error is ErrFault.
func (m *Memory) Write(at uint64, b []byte) error { return transfer(m.fd, unix.Pwrite, at, b) }

// ReadSome reads as much as there is before the first page that is not mapped.
func (m *Memory) ReadSome(at uint64, b []byte) (n int, err error) {
	for n < len(b) && at != 0 && at <= math.MaxInt64-uint64(len(b)) {
		got, err := unix.Pread(m.fd, b[n:], int64(at)+int64(n))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EIO), errors.Is(err, unix.EFAULT), err == nil && got == 0:
			return n, nil
		case err != nil:
			return n, fmt.Errorf("access memory of a program: %w", err)
		}
		n += got
	}
	return n, nil
}

func transfer(fd int, call func(int, []byte, int64) (int, error), at uint64, b []byte) error {
	for len(b) > 0 {
		if at == 0 || at > math.MaxInt64-uint64(len(b)) {
			return ErrFault
		}
		n, err := call(fd, b, int64(at))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EIO), errors.Is(err, unix.EFAULT), err == nil && n == 0:
			return ErrFault
		case err != nil:
			return fmt.Errorf("access memory of a program: %w", err)
		}
		at, b = at+uint64(n), b[n:]
	}
	return nil
}
