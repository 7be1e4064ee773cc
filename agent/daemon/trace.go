package daemon

import (
	"bytes"
	"context"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tsugiki/tsugiki/agent/httpapi"
	"github.com/tsugiki/tsugiki/graft"
)

// # Traces
//
// Decisions about the calls of a daemon's container go to the traces of the container, and nowhere
// else. Warnings and errors go to the daemon's log too. While nobody traces a container, nothing is
// sent, written or allocated for traces, and the gates and shims decide by themselves again.
//
// A trace has a queue. A decider puts a line there and goes on. A line for which there is no room
// is lost. A count of lost lines stands in its place.

const (
	tracesMax     = 8  // of one container
	tracesMaxAll  = 64 // of a daemon
	traceLinesMax = 1024
)

// tracer has the traces of one container.
type tracer struct {
	// traced is called with true when the first trace opens, and with false when the last one ends.
	traced func(bool)
	// wanted says that there is a trace.
	wanted atomic.Bool

	denials denials // kept with and without traces

	changing sync.Mutex // serializes calls of traced; taken before mu

	mu     sync.Mutex // guards what follows
	traces []*trace
	closed bool
}

func newTracer(traced func(bool)) *tracer { return &tracer{traced: traced} }

// open begins a trace of all decisions after open has returned.
func (t *tracer) open() (*trace, error) {
	t.changing.Lock()
	defer t.changing.Unlock()
	x, first, err := t.insert()
	if first {
		t.traced(true)
	}
	return x, err
}

func (t *tracer) insert() (x *trace, first bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return nil, false, httpapi.ErrNoContainer
	case len(t.traces) >= tracesMax:
		return nil, false, fmt.Errorf("%w: %d of this container; end one", httpapi.ErrTraces, tracesMax)
	}
	x = &trace{more: make(chan struct{}, 1)}
	x.ended, x.end = context.WithCancel(context.Background())
	t.traces = append(t.traces, x)
	t.wanted.Store(true)
	return x, len(t.traces) == 1, nil
}

// drop ends a trace of open.
func (t *tracer) drop(x *trace) {
	t.changing.Lock()
	defer t.changing.Unlock()
	x.end()
	if t.remove(x) {
		t.traced(false)
	}
}

// remove removes a trace, and tells whether it was the last.
func (t *tracer) remove(x *trace) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.traces = slices.DeleteFunc(t.traces, func(other *trace) bool { return other == x })
	last := len(t.traces) == 0 && !t.closed
	t.wanted.Store(len(t.traces) > 0)
	return last
}

// close ends all traces when their container has ended.
func (t *tracer) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, x := range t.traces {
		x.end()
	}
}

// Write takes a line for all traces.
func (t *tracer) Write(line []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.traces) > 0 {
		line := bytes.Clone(line) // they only read it
		for _, x := range t.traces {
			x.put(line)
		}
	}
	return len(line), nil
}

// trace is a reader of a tracer.
type trace struct {
	more  chan struct{} // has an item while there are lines
	ended context.Context
	end   func()

	mu    sync.Mutex // guards what follows
	lines [][]byte
	lost  int // since the last of lines
}

func (x *trace) put(line []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.lines) >= traceLinesMax {
		x.lost++
		return
	}
	x.note()
	x.lines = append(x.lines, line)
	select {
	case x.more <- struct{}{}:
	default:
	}
}

// note adds a line with the number of lost lines. The caller holds x.mu.
func (x *trace) note() {
	if x.lost > 0 {
		x.lines = append(x.lines, fmt.Appendf(nil, "{\"lost\":%d}\n", x.lost))
		x.lost = 0
	}
}

// take removes and returns the lines, each a JSON object.
func (x *trace) take() [][]byte {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.note()
	lines := x.lines
	x.lines = nil
	return lines
}

// traceHandler handles the log records of decisions about a container.
type traceHandler struct {
	tracer *tracer
	log    slog.Handler // the daemon's
	lines  slog.Handler // writes to tracer
	denied slog.Handler // writes to tracer.denials
}

func (t *tracer) handler(log slog.Handler) slog.Handler {
	options := &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: asPrinted}
	return traceHandler{t, log, slog.NewJSONHandler(t, options), slog.NewJSONHandler(&t.denials, options)}
}

// asPrinted makes JSON show a value as a text log shows it.
func asPrinted(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() != slog.KindAny {
		return a
	}
	switch v := a.Value.Any().(type) {
	case json.Marshaler, encoding.TextMarshaler, error:
	case fmt.Stringer:
		a.Value = slog.StringValue(v.String())
	}
	return a
}

func (h traceHandler) logs(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && h.log.Enabled(ctx, level)
}

// Enabled returns false if nobody would see a line.
func (h traceHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.tracer.wanted.Load() || h.logs(ctx, level) || graft.IsRefusal(ctx)
}

func (h traceHandler) Handle(ctx context.Context, r slog.Record) error {
	var err error
	if h.logs(ctx, r.Level) {
		err = h.log.Handle(ctx, r)
	}
	if h.tracer.wanted.Load() {
		err = errors.Join(err, h.lines.Handle(ctx, r))
	}
	if isDenial(r) {
		err = errors.Join(err, h.denied.Handle(ctx, r))
	}
	return err
}

func (h traceHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return traceHandler{h.tracer, h.log.WithAttrs(attrs), h.lines.WithAttrs(attrs), h.denied.WithAttrs(attrs)}
}

func (h traceHandler) WithGroup(name string) slog.Handler {
	return traceHandler{h.tracer, h.log.WithGroup(name), h.lines.WithGroup(name), h.denied.WithGroup(name)}
}
