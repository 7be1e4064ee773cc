package notify

import (
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// memory is the memory of a program that waits for an answer. It is opened before the check that
// the notification is valid, so it is the caller's and stays so. When the caller is killed or
// executes another program, it is nobody's memory any more.
//
// The program may change a value after it was read. So each value is read once, and only the value
// read counts. A read or a write may take for ever, if the program's memory does (userfaultfd, a
// file of a slow file system). It delays only calls of the same container.
type memory struct {
	fd int
}

// errFault says that the program's pointer is invalid.
var errFault = fmt.Errorf("bad address in the program: %w", unix.EFAULT)

func (p *program) memory() (*memory, error) {
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/mem", p.request.Thread), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if verr := p.valid(); verr != nil {
		if err == nil {
			unix.Close(fd)
		}
		return nil, verr
	}
	if err != nil {
		return nil, fmt.Errorf("open memory of thread %d: %w", p.request.Thread, err)
	}
	return &memory{fd}, nil
}

func (m *memory) close() { unix.Close(m.fd) }

func (m *memory) read(at uint64, b []byte) error  { return transfer(m.fd, unix.Pread, at, b) }
func (m *memory) write(at uint64, b []byte) error { return transfer(m.fd, unix.Pwrite, at, b) }

// readSome reads as much as there is before the first page that is not mapped.
func (m *memory) readSome(at uint64, b []byte) (n int, err error) {
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
			return errFault
		}
		n, err := call(fd, b, int64(at))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EIO), errors.Is(err, unix.EFAULT), err == nil && n == 0:
			return errFault
		case err != nil:
			return fmt.Errorf("access memory of a program: %w", err)
		}
		at, b = at+uint64(n), b[n:]
	}
	return nil
}

func (p *program) readAt(at uint64, b []byte) error {
	m, err := p.memory()
	if err != nil {
		return err
	}
	defer m.close()
	return m.read(at, b)
}

func (p *program) writeAt(at uint64, b []byte) error {
	m, err := p.memory()
	if err != nil {
		return err
	}
	defer m.close()
	return m.write(at, b)
}
