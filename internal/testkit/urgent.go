package testkit

import (
	"net"

	"golang.org/x/sys/unix"
)

// SendUrgent sends "before", an urgent byte (MSG_OOB) and "after" on a TCP connection.
func SendUrgent(t TB, c *net.TCPConn) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatalf("%v", err)
	}
	err = raw.Control(func(fd uintptr) {
		for _, part := range []struct {
			text  string
			flags int
		}{{"before", 0}, {"!", unix.MSG_OOB}, {"after", 0}} {
			if err := unix.Send(int(fd), []byte(part.text), part.flags); err != nil {
				t.Errorf("%v", err)
			}
		}
	})
	if err != nil {
		t.Fatalf("%v", err)
	}
}
