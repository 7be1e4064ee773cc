package notify

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
)

// logOutcome logs with which errno a call of connect, send, bind or listen was answered; 0 is
// success. The kernel's own answer to a call that it carries out is not known here.
func (s *Supervisor) logOutcome(r gate.Request, answer graft.Answer) {
	ctx, errno := context.Background(), "0"
	switch r.Call {
	case gate.Connect, gate.Send, gate.Bind, gate.Listen:
	default:
		return
	}
	switch answer.Action {
	case graft.Proceed:
		return
	case graft.Fail:
		ctx, errno = graft.Refusals, unix.ErrnoName(answer.Errno)
	}
	values := []any{"pid", r.Thread, "syscall", r.Call, "fd", r.Number}
	if addr, ok := sockaddr.Parse(r.Address); ok {
		values = append(values, "addr", addr)
	}
	s.log.InfoContext(ctx, "answered", append(values, "errno", errno)...)
}
