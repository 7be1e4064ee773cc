// Relied upon: a listener takes SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP, which keeps
// supervisor and caller on one CPU, and works as before afterwards.
//
// Since: Linux 6.6.
// By: intercept/notify (a hint: it goes without on older kernels).

package kernel

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func init() {
	roles["getsid"] = func(c *child) {
		c.trap(0, unix.SYS_GETSID)
		sid, err := unix.Getsid(0)
		c.say("%d %v", sid, err)
	}
}

func TestListenerTakesSyncWakeUp(t *testing.T) {
	p := start(t, "getsid", nil)
	l := p.takeListener(t)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(l), unix.SECCOMP_IOCTL_NOTIF_SET_FLAGS,
		unix.SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP)
	if errors.Is(errno, unix.EINVAL) {
		t.Skip("skip: needs Linux 6.6: SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP")
	}
	want(t, "set flags", errno, 0)
	try(t, "answer", l.send(answer{id: l.next(t).id, val: 4711}))
	want(t, "result of the call", p.hear(t), "4711 <nil>")
}
