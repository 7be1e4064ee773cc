// Relied upon: a socket stays in the network namespace in which it was made
// when a process in another one uses it: SO_NETNS_COOKIE tells the first, and
// connect reaches listeners of the first.
//
// Since: always; SO_NETNS_COOKIE Linux 5.14.
// By: everything, it is what grafting is.

package kernel

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func init() {
	roles["use socket"] = func(c *child) {
		given, err := unix.GetsockoptUint64(firstFile, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		c.check("get SO_NETNS_COOKIE of given socket", err)
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		c.check("make socket", err)
		own, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		c.check("get SO_NETNS_COOKIE of own socket", err)
		c.say("%d %d", given, own)
		c.say("%v", unix.Connect(firstFile, sockaddr("127.0.0.1:80")))
	}
}

func TestSocketStaysInItsNamespace(t *testing.T) {
	enterNetns(t)
	server := listenerAt(t, unix.SOCK_STREAM, "127.0.0.1:80")
	fd := socket(t, unix.AF_INET, unix.SOCK_STREAM, 0)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if errors.Is(err, unix.ENOPROTOOPT) {
		t.Skip("skip: needs Linux 5.14: SO_NETNS_COOKIE")
	}
	try(t, "get SO_NETNS_COOKIE", err)

	// In the child's namespace there is no listener; even its loopback is down.
	user := start(t, "use socket", &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}, fd)
	var given, own int
	user.hearInts(t, &given, &own)
	want(t, "cookie of the given socket", uint64(given), cookie)
	if uint64(own) == cookie {
		t.Error("child is in the same namespace")
	}
	want(t, "child's connect", user.hear(t), "<nil>")
	_, peer := accept(t, server)
	want(t, "peer", peer, local(t, fd))
}
