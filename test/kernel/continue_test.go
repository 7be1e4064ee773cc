// Relied upon: a trapped call that is continued after its socket was replaced
// (SECCOMP_ADDFD_FLAG_SETFD) runs on the new socket, because the kernel looks the
// number up only then. The program's own blocking connect(2) waits in the
// kernel: a signal whose handler is not SA_RESTART ends it with EINTR; one whose
// handler is SA_RESTART restarts it, which traps it again, now on a socket that
// is connecting already and only has to be continued once more.
//
// Since: Linux 5.5 (CONTINUE), 5.9 (ADDFD).
// By: intercept/notify (swap and continue; it must know the sockets it swapped).

package kernel

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// plainSignal interrupts connect, restartedSignal restarts it.
const (
	plainSignal     = unix.SIGUSR1
	restartedSignal = unix.SIGUSR2
)

func init() {
	roles["connect"] = func(c *child) {
		c.check("set signal action", noRestart(plainSignal))
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		c.check("make socket", err)
		c.trap(0, unix.SYS_CONNECT)
		c.say("%v", unix.Connect(fd, sockaddr("127.0.0.1:80")))
		c.hear()
	}
}

// swapConnect starts a child in a namespace where nothing can be reached, and
// lets its connect run on a socket of the caller's namespace.
func swapConnect(t *testing.T) (p *process, l listener, n notification, fd int) {
	t.Helper()
	p = start(t, "connect", &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNET})
	l = p.takeListener(t)
	n = l.next(t)
	fd = socket(t, unix.AF_INET, unix.SOCK_STREAM, 0)
	_, err := l.add(addfd{id: n.id, flags: unix.SECCOMP_ADDFD_FLAG_SETFD, srcfd: uint32(fd), newfd: uint32(n.args[0])})
	try(t, "replace socket", err)
	l.proceed(t, n)
	return p, l, n, fd
}

func TestContinuedConnectRunsOnTheNewSocket(t *testing.T) {
	enterNetns(t)
	server := listenerAt(t, unix.SOCK_STREAM, "127.0.0.1:80")
	p, _, _, fd := swapConnect(t)
	want(t, "child's connect", p.hear(t), "<nil>")
	_, peer := accept(t, server)
	want(t, "peer", peer, local(t, fd))
}

// fullListener makes a listener that leaves the next connect waiting until one
// more connection is accepted.
func fullListener(t *testing.T, address string) int {
	t.Helper()
	server := listenerAt(t, unix.SOCK_STREAM, address)
	try(t, "listen", unix.Listen(server, 0))
	filler := socket(t, unix.AF_INET, unix.SOCK_STREAM, 0)
	try(t, "fill backlog", unix.Connect(filler, sockaddr(address)))
	return server
}

func waitConnecting(t *testing.T, fd int) {
	t.Helper()
	const synSent = 2 // TCP_SYN_SENT of linux/tcp_states.h
	testkit.Eventually(t, holds("start to connect", func() bool {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		try(t, "get TCP_INFO", err)
		return info.State == synSent
	}))
}

func TestContinuedConnectIsInterrupted(t *testing.T) {
	enterNetns(t)
	fullListener(t, "127.0.0.1:80")
	p, _, n, fd := swapConnect(t)
	waitConnecting(t, fd)
	testkit.Eventually(t, holds("connect blocks", func() bool { return p.sleepsIn(int(n.pid), unix.SYS_CONNECT) }))
	try(t, "signal", unix.Tgkill(p.pid, int(n.pid), plainSignal))
	want(t, "child's connect", p.hear(t), unix.EINTR.Error())
}

func TestContinuedConnectIsTrappedAgainOnRestart(t *testing.T) {
	enterNetns(t)
	server := fullListener(t, "127.0.0.1:80")
	p, l, n, fd := swapConnect(t)
	waitConnecting(t, fd)
	try(t, "signal", unix.Tgkill(p.pid, int(n.pid), restartedSignal))
	again := l.next(t)
	want(t, "call", again.nr, n.nr)
	want(t, "arguments", again.args, n.args)
	if again.id == n.id {
		t.Error("restarted call has the old id")
	}
	l.proceed(t, again)
	accept(t, server)
	want(t, "child's connect", p.hear(t), "<nil>")
	_, peer := accept(t, server)
	want(t, "peer", peer, local(t, fd))
}
