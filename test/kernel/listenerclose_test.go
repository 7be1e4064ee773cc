// Relied upon, about the life of a listener:
//
//   - when its last descriptor is closed, calls that wait for an answer, and all
//     later ones, fail with ENOSYS. So somebody has to hold it whenever the agent
//     may be gone; while somebody does, they wait.
//   - a signal whose handler is not SA_RESTART ends a blocked
//     SECCOMP_IOCTL_NOTIF_RECV with EINTR. With SA_RESTART the call goes on, since
//     Linux 6.6. Go's handlers are all SA_RESTART, SIGURG's included, so a
//     receiver in Go cannot be stopped by a signal: it polls first, together with
//     something that can be woken (poll(2) is never restarted).
//   - when the last process that uses the filter is gone, poll(2) says POLLHUP, and
//     a receive answers ENOENT instead of blocking for ever.
//
// Since: Linux 5.0; POLLHUP 5.9; ENOENT 6.11.
// By: keeper (holds a duplicate), intercept/notify (how its receivers stop, that
// it ends with its container).

package kernel

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

func init() {
	roles["getsid twice"] = func(c *child) {
		c.trap(0, unix.SYS_GETSID)
		for range 2 {
			_, err := unix.Getsid(0)
			c.say("%v", err)
		}
		c.hear()
	}
}

func TestCallsFailWhenTheListenerIsClosed(t *testing.T) {
	p := start(t, "getsid twice", nil)
	l := p.takeListener(t)
	held, err := unix.Dup(int(l))
	try(t, "duplicate listener", err)
	n := l.next(t)
	try(t, "close", unix.Dup3(p.pidfd, int(l), unix.O_CLOEXEC)) // the cleanup closes this number again
	try(t, "the call waits while a duplicate is held", listener(held).valid(n))
	try(t, "close duplicate", unix.Close(held))
	want(t, "call that waited", p.hear(t), unix.ENOSYS.Error())
	want(t, "next call", p.hear(t), unix.ENOSYS.Error())
}

func TestSignalInterruptsReceive(t *testing.T) {
	p := start(t, "trap nothing", nil)
	l := p.takeListener(t)

	receive := func(role string) (r *process, tid, slept int) {
		t.Helper()
		r = start(t, role, nil, int(l))
		r.hearInts(t, &tid)
		testkit.Eventually(t, holds("receive", func() bool { return r.sleepsIn(tid, unix.SYS_IOCTL) }))
		slept = r.slept(t, tid)
		try(t, "signal", unix.Tgkill(r.pid, tid, unix.SIGUSR1))
		return r, tid, slept
	}
	r, _, _ := receive("receive")
	want(t, "receive", r.hear(t), unix.EINTR.Error())
	r, tid, slept := receive("receive, restarted")
	testkit.Eventually(t, holds("receive again, or say why not", func() bool {
		return len(r.heard) > 0 || r.slept(t, tid) > slept && r.sleepsIn(tid, unix.SYS_IOCTL)
	}))
	if len(r.heard) > 0 {
		want(t, "receive with SA_RESTART", r.hear(t), unix.EINTR.Error())
		t.Log("before Linux 6.6: receive is interrupted in spite of SA_RESTART")
	}
}

func init() {
	receive := func(c *child) {
		c.say("%d", unix.Gettid())
		_, err := listener(firstFile).receive()
		c.say("%v", err)
		c.hear()
	}
	roles["receive, restarted"] = receive
	roles["receive"] = func(c *child) {
		c.check("set signal action", noRestart(unix.SIGUSR1))
		receive(c)
	}
}

func init() {
	roles["trap nothing"] = func(c *child) {
		c.trap(0)
		c.hear()
	}
}

func TestListenerHangsUpAfterTheLastProcess(t *testing.T) {
	p := start(t, "trap nothing", nil)
	l := p.takeListener(t)
	want(t, "events while the process lives", l.poll(t, 0), 0)
	p.kill()
	want(t, "events after it", l.poll(t, int(testkit.Patience.Milliseconds())), unix.POLLHUP)

	r := start(t, "receive", nil, int(l))
	var tid int
	r.hearInts(t, &tid)
	testkit.Eventually(t, holds("receive", func() bool {
		return len(r.heard) > 0 || r.sleepsIn(tid, unix.SYS_IOCTL)
	}))
	if len(r.heard) == 0 {
		t.Skip("skip: needs Linux 6.11: receive ends with the last process")
	}
	want(t, "receive", r.hear(t), unix.ENOENT.Error())
}
