package testkit

import (
	"errors"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// FullListener listens at a unix socket whose queue is full: a connection that does not block is refused
// (EAGAIN) until the test accepts one of those that wait there.
func FullListener(t TB) net.Listener {
	t.Helper()
	dir, err := os.MkdirTemp("", "full") // a short path
	if err != nil {
		t.Fatalf("make a full listener: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := func() int {
		s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatalf("make a full listener: %v", err)
		}
		return s
	}
	at := &unix.SockaddrUnix{Name: filepath.Join(dir, "socket")}
	s := socket()
	file := os.NewFile(uintptr(s), at.Name)
	defer file.Close()
	if err := errors.Join(unix.Bind(s, at), unix.Listen(s, 0)); err != nil {
		t.Fatalf("make a full listener: %v", err)
	}
	l, err := net.FileListener(file)
	if err != nil {
		t.Fatalf("make a full listener: %v", err)
	}
	t.Cleanup(func() { l.Close() })
	for {
		c := socket()
		t.Cleanup(func() { unix.Close(c) })
		if err := unix.Connect(c, at); errors.Is(err, unix.EAGAIN) {
			return l
		} else if err != nil {
			t.Fatalf("make a full listener: %v", err)
		}
	}
}
