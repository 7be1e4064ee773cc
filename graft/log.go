package graft

import (
	"context"
	"log/slog"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/policy"
)

// LogDecision logs a decision about a destination that was made without the engine. Where a rule is
// for one protocol, the engine has to decide.
func (e *Engine) LogDecision(p Program, syscall string, number int, to netip.AddrPort) {
	e.logDecision(p, syscall, number, to, e.begin().Table.Egress(0, to))
}

func (e *Engine) logDecision(p Program, syscall string, number int, addr netip.AddrPort, ep *endpoint.Endpoint) {
	// The arguments would be allocated even where nobody wants them.
	if !e.Log.Enabled(context.Background(), slog.LevelInfo) {
		return
	}
	e.Log.Info("decided", "pid", p.Thread(), "syscall", syscall, "fd", number, "addr", addr, "endpoint", nameOf(ep))
}

// logTranslated logs which IPv6 address replaces a virtual one.
func (e *Engine) logTranslated(p Program, number int, to, to6 netip.AddrPort, ep *endpoint.Endpoint) {
	if e.Log.Enabled(context.Background(), slog.LevelInfo) {
		e.Log.Info("decided", "pid", p.Thread(), "syscall", "connect", "fd", number, "addr", to, "to", to6, "endpoint", nameOf(ep))
	}
}

func nameOf(ep *endpoint.Endpoint) string {
	if ep == nil {
		return "-"
	}
	return ep.Name
}

// LogKernel logs the decisions of the kernel programs, and the number of decisions that they could
// not report.
func (e *Engine) LogKernel(list []policy.Decision, lost uint64) {
	ctx := context.Background()
	if !e.Log.Enabled(ctx, slog.LevelInfo) {
		return
	}
	numbered := e.begin().Table.Numbered()
	for _, d := range list {
		var ep *endpoint.Endpoint
		if d.Endpoint >= 0 && d.Endpoint < len(numbered) {
			ep = numbered[d.Endpoint]
		}
		r := slog.NewRecord(d.Time, slog.LevelInfo, "decided", 0)
		r.Add("pid", d.Thread, "syscall", d.Syscall, "socket", d.Socket, "addr", d.Asked, "endpoint", nameOf(ep),
			"protocol", protocolName(d.Protocol))
		if d.Led != d.Asked {
			r.Add("to", d.Led)
		}
		if d.Errno != 0 {
			r.Add("errno", unix.ErrnoName(d.Errno))
		}
		_ = e.Log.Handler().Handle(ctx, r) // as slog.Logger does
	}
	if lost > 0 {
		e.Log.Info("decisions were lost", "lost", lost)
	}
}

func protocolName(protocol int) string {
	if isTCP(protocol) {
		return "tcp"
	}
	return "udp"
}
