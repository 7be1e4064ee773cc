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
	table := e.begin().Table
	numbered := table.Numbered()
	for _, d := range list {
		var ep *endpoint.Endpoint
		if d.Endpoint >= 0 && d.Endpoint < len(numbered) {
			ep = numbered[d.Endpoint]
		}
		to := e.ledTo(d)
		if ep == nil && e.Translator != nil && d.Asked.Addr().Unmap().Is4() && !to.Addr().Unmap().Is4() {
			ep = table.Egress(policy.Protocol(d.Protocol), to)
		}
		r := slog.NewRecord(d.Time, slog.LevelInfo, "decided", 0)
		r.Add("pid", d.Thread, "syscall", d.Syscall, "socket", d.Socket, "addr", d.Asked, "endpoint", nameOf(ep),
			"protocol", protocolName(d.Protocol))
		if d.Led != d.Asked {
			r.Add("to", to)
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

// ledTo returns where a datagram leads. To a virtual address it is led by an alias (bpf/virtual.h),
// which is the IPv6 host's.
func (e *Engine) ledTo(d policy.Decision) netip.AddrPort {
	asked, led := d.Asked.Addr().Unmap(), d.Led.Addr().Unmap()
	if e.Translator == nil || !asked.Is4() || asked.IsLoopback() || !led.Is4() || !led.IsLoopback() {
		return d.Led
	}
	if a, b := asked.As4(), led.As4(); [3]byte(a[1:]) != [3]byte(b[1:]) {
		return d.Led
	}
	v6, known := e.Translator.V6(asked)
	if !known {
		return d.Led
	}
	return netip.AddrPortFrom(v6, d.Led.Port())
}

func protocolName(protocol int) string {
	if isTCP(protocol) {
		return "tcp"
	}
	return "udp"
}
