// Relied upon: connect(2) on a TCP socket that connects already, or has failed to, reads no address: it
// waits, or says how it ended. An IPv6 socket takes a struct sockaddr_in then, for which it is EINVAL
// before. A connect that has failed is told once; then the socket is a new one.
//
// Since: Linux 2.6 (__inet_stream_connect).
// By: graft (translated sockets): the kernel continues a program's connect to an IPv4 address on the
// IPv6 socket that has taken the place of its own.

package kernel

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

func TestConnectThatIsUnderWay(t *testing.T) {
	enterNetns(t)
	listenerAt(t, unix.SOCK_STREAM, "[::1]:80")
	testkit.AddToLoopback(t, "2001:db8::9/64")
	short := sockaddr("198.18.0.1:80") // of IPv4

	fd := socket(t, unix.AF_INET6, unix.SOCK_STREAM, 0)
	want(t, "connect to IPv4", unix.Connect(fd, short), error(unix.EINVAL))
	begin(t, fd, "[::1]:80")
	want(t, "connect that is continued", unix.Connect(fd, short), nil)
	want(t, "connect of a connected socket", unix.Connect(fd, short), error(unix.EISCONN))

	fd = socket(t, unix.AF_INET6, unix.SOCK_STREAM, 0)
	begin(t, fd, "[2001:db8::1]:80") // where nobody answers
	try(t, "let connect not wait", unix.SetNonblock(fd, true))
	want(t, "connect that goes on", unix.Connect(fd, short), error(unix.EALREADY))

	fd = socket(t, unix.AF_INET6, unix.SOCK_STREAM, 0)
	begin(t, fd, "[::1]:81")
	want(t, "connect that has failed", unix.Connect(fd, short), error(unix.ECONNREFUSED))
	want(t, "the next", unix.Connect(fd, short), error(unix.EINVAL))
}

// begin begins to connect, without waiting, and then lets the socket wait.
func begin(t *testing.T, fd int, to string) {
	t.Helper()
	try(t, "let connect not wait", unix.SetNonblock(fd, true))
	if err := unix.Connect(fd, sockaddr(to)); err != nil && err != unix.EINPROGRESS {
		t.Fatalf("connect to %s: %v", to, err)
	}
	try(t, "let connect wait", unix.SetNonblock(fd, false))
}
