package host

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// past is a deadline that has passed.
var past = time.Unix(1, 0)

// lasting makes a pipe that does not break. The program's children have their end longer than this
// process lives: with an ordinary pipe, what they write would kill them then, or they would wait.
// So theirs is open for reading, too, and does not block.
func lasting() (ours, theirs *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, nil, fmt.Errorf("make pipe: %w", err)
	}
	defer unix.Close(fds[1])
	ours = os.NewFile(uintptr(fds[0]), "output of the program")
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fds[1]), unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		ours.Close()
		return nil, nil, fmt.Errorf("open pipe: %w", err)
	}
	return ours, os.NewFile(uintptr(fd), "output of the program"), nil
}

// rest writes what is left in a pipe after a deadline has ended the copying.
func rest(w io.Writer, pipe *os.File) {
	if pipe.SetReadDeadline(time.Time{}) != nil {
		return
	}
	raw, err := pipe.SyscallConn()
	if err != nil {
		return
	}
	buf := make([]byte, 64<<10)
	_ = raw.Read(func(fd uintptr) bool {
		for {
			n, err := unix.Read(int(fd), buf)
			if n <= 0 || err != nil {
				return true
			}
			_, _ = w.Write(buf[:n]) // as io.Copy
		}
	})
}
