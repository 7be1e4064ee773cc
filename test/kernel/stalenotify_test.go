// Relied upon, about callers that give up:
//
//   - once a caller was killed, NOTIF_ID_VALID, an answer and ADDFD all fail with
//     ENOENT for its notification, and no receive returns it again. A
//     notification that nobody had received is taken back: the receive that was
//     promised it by poll(2) answers ENOENT once, instead of blocking.
//   - a signal with a handler takes the notification back in the same way, and
//     the call, restarted, comes as a new one. With
//     SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV that is over as soon as the
//     notification was received: the caller waits for the answer.
//
// Since: Linux 5.0; WAIT_KILLABLE_RECV 5.19.
// By: intercept/notify (reads the caller's memory, then checks the id; Go's
// preemption signals reach programs in the middle of a connect).

package kernel

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

func init() {
	roles["getsid once"] = func(c *child) {
		c.say("%d", os.Getpid())
		_, err := unix.Getsid(0)
		c.say("%v", err)
	}
	// A process that starts another one under its own filter, and makes the call
	// itself when told to.
	roles["with caller"] = func(c *child) {
		c.trap(0, unix.SYS_GETSID)
		caller := exec.Command("/proc/self/exe")
		caller.Env = append(os.Environ(), roleEnv+"=getsid once")
		caller.ExtraFiles = []*os.File{os.NewFile(3, "in"), c.out}
		c.check("start caller", caller.Start())
		_ = caller.Wait()
		c.say("caller is gone")
		c.hear()
		_, err := unix.Getsid(0)
		c.say("%v", err)
	}
}

func TestNotificationOfKilledCallerIsStale(t *testing.T) {
	p := start(t, "with caller", nil)
	l := p.takeListener(t)
	var pid int
	p.hearInts(t, &pid)
	n := l.next(t)
	want(t, "caller", int(n.pid), pid)
	try(t, "check id", l.valid(n))

	try(t, "kill", unix.Kill(pid, unix.SIGKILL))
	want(t, "child", p.hear(t), "caller is gone")
	want(t, "check id", l.valid(n), error(unix.ENOENT))
	want(t, "answer", l.send(answer{id: n.id}), error(unix.ENOENT))
	_, err := l.add(addfd{id: n.id, srcfd: uint32(p.pidfd)})
	want(t, "add file", err, error(unix.ENOENT))

	p.say("your turn")
	next := l.next(t)
	want(t, "next caller", int(next.pid), p.pid)
	try(t, "answer", l.send(answer{id: next.id}))
	want(t, "its call", p.hear(t), "<nil>")
}

func TestNotificationOfKilledCallerIsTakenBack(t *testing.T) {
	p := start(t, "with caller", nil)
	l := p.takeListener(t)
	var pid int
	p.hearInts(t, &pid)
	want(t, "events", l.poll(t, int(testkit.Patience.Milliseconds())), unix.POLLIN)

	try(t, "kill", unix.Kill(pid, unix.SIGKILL))
	want(t, "child", p.hear(t), "caller is gone")
	_, err := l.receive()
	for errors.Is(err, unix.EINTR) {
		_, err = l.receive()
	}
	want(t, "receive", err, error(unix.ENOENT))
	p.say("your turn")
	next := l.next(t)
	want(t, "next caller", int(next.pid), p.pid)
	try(t, "answer", l.send(answer{id: next.id}))
	want(t, "its call", p.hear(t), "<nil>")
}

func init() {
	interrupted := func(flags int) func(c *child) {
		return func(c *child) {
			c.trap(flags, unix.SYS_GETSID)
			sid, err := unix.Getsid(0)
			c.say("%d %v", sid, err)
		}
	}
	roles["interruptible"] = interrupted(0)
	roles["killable"] = interrupted(unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)
}

func TestSignalTakesNotificationBack(t *testing.T) {
	p := start(t, "interruptible", nil)
	l := p.takeListener(t)
	n := l.next(t)
	try(t, "signal", unix.Tgkill(p.pid, int(n.pid), unix.SIGURG))
	again := l.next(t)
	if again.id == n.id {
		t.Error("restarted call has the old id")
	}
	want(t, "answer to the old id", l.send(answer{id: n.id, val: 1}), error(unix.ENOENT))
	try(t, "answer", l.send(answer{id: again.id, val: 2}))
	want(t, "result of the call", p.hear(t), "2 <nil>")
}

func TestKillableCallerWaitsForItsAnswer(t *testing.T) {
	p := start(t, "killable", nil)
	if line := <-p.heard; line == "install filter: "+unix.EINVAL.Error() {
		t.Skip("skip: needs Linux 5.19: SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV")
	} else {
		p.heard <- line
	}
	l := p.takeListener(t)
	n := l.next(t)
	try(t, "signal", unix.Tgkill(p.pid, int(n.pid), unix.SIGURG))
	want(t, "events after the signal", l.poll(t, 100), 0)
	try(t, "check id", l.valid(n))
	try(t, "answer", l.send(answer{id: n.id, val: 1}))
	want(t, "result of the call", p.hear(t), "1 <nil>")
}
