package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/agent/httpapi"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/graft"
)

// withoutTime makes a handler whose lines can be compared.
func withoutTime(level slog.Level) *slog.HandlerOptions {
	return &slog.HandlerOptions{Level: level, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}
}

// tracedLog is a container's log of decisions, and the agent's.
func tracedLog(t *tracer) (*slog.Logger, *bytes.Buffer) {
	var agents bytes.Buffer
	return slog.New(t.handler(slog.NewTextHandler(&agents, withoutTime(slog.LevelInfo)))).With("container", "c"), &agents
}

// reread is what Relog makes of the lines of a trace, without their times.
func reread(t *testing.T, lines [][]byte) string {
	t.Helper()
	var text bytes.Buffer
	err := api.Relog(io.NopCloser(bytes.NewReader(bytes.Join(lines, nil))), slog.NewTextHandler(&text, withoutTime(slog.LevelDebug)))
	if err != nil {
		t.Fatal(err)
	}
	return text.String()
}

// write logs all kinds of values that decisions have.
func write(log *slog.Logger) {
	log.Debug("created on the host", "pid", 4000, "syscall", gate.Socket, "family", -2)
	log.Info("decided", "addr", netip.MustParseAddrPort("[2001:db8::1]:80"), "endpoint", "-", "type", endpoint.Unix)
	log.Warn("a \"quoted\" = text", "err", fmt.Errorf("it is: %w", unix.EPERM), "yes", true)
	log.With("pid", 7).WithGroup("g").With("a", 1).Info("grouped", "b", uint64(1<<63))
	log.Error("no values")
}

func TestTraceHandler(t *testing.T) {
	tracer := newTracer(func(bool) {})
	log, agents := tracedLog(tracer)
	write(log)
	const want = `level=WARN msg="a \"quoted\" = text" container=c err="it is: operation not permitted" yes=true
level=ERROR msg="no values" container=c
`
	if diff := cmp.Diff(want, agents.String()); diff != "" {
		t.Errorf("the agent's log, without a trace (-want +got):\n%s", diff)
	}
	for level, want := range map[slog.Level]bool{slog.LevelDebug: false, slog.LevelInfo: false, slog.LevelWarn: true, slog.LevelError: true} {
		if got := log.Enabled(context.Background(), level); got != want {
			t.Errorf("%v is enabled without a trace: %v", level, got)
		}
	}
	if n := testing.AllocsPerRun(100, func() {
		log.LogAttrs(context.Background(), slog.LevelInfo, "decided", slog.Int("pid", 4000), slog.String("endpoint", "out"))
	}); n != 0 {
		t.Errorf("%v allocations without a trace", n)
	}

	x, err := tracer.open()
	if err != nil {
		t.Fatal(err)
	}
	agents.Reset()
	write(log)
	if diff := cmp.Diff(want, agents.String()); diff != "" {
		t.Errorf("the agent's log, with a trace (-want +got):\n%s", diff)
	}
	lines := x.take()
	if !bytes.Contains(lines[0], []byte(`"msg":"created on the host","container":"c","pid":4000,"syscall":"socket","family":-2}`)) {
		t.Errorf("%s", lines[0])
	}
	// What the embedded agent would have written.
	var direct bytes.Buffer
	write(slog.New(slog.NewTextHandler(&direct, withoutTime(slog.LevelDebug))).With("container", "c"))
	got := strings.ReplaceAll(reread(t, lines), `g="{\"a\":1,\"b\":9223372036854775808}"`, "g.a=1 g.b=9223372036854775808")
	if diff := cmp.Diff(direct.String(), got); diff != "" {
		t.Errorf("the trace (-as the embedded agent logs +got):\n%s", diff)
	}
	tracer.drop(x)
	if log.Enabled(context.Background(), slog.LevelInfo) {
		t.Error("enabled after the last trace")
	}
}

// What is lost is counted where it would have been.
func TestTraceLoses(t *testing.T) {
	tracer := newTracer(func(bool) {})
	slow, err := tracer.open()
	if err != nil {
		t.Fatal(err)
	}
	fast, err := tracer.open()
	if err != nil {
		t.Fatal(err)
	}
	write := func(n int) {
		for range n {
			fmt.Fprint(tracer, "{}\n")
		}
	}
	check := func(name string, x *trace, want ...string) {
		t.Helper()
		var got []string
		empty := 0
		for _, line := range x.take() {
			if string(line) == "{}\n" {
				empty++
				continue
			}
			got = append(got, fmt.Sprint(empty, " ", strings.TrimSpace(string(line))))
			empty = 0
		}
		if got = append(got, fmt.Sprint(empty)); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	write(traceLinesMax)
	check("fast", fast, "1024")
	write(5)
	check("slow", slow, `1024 {"lost":5}`, "0")
	check("fast", fast, "5")
	write(3)
	check("slow", slow, "3")
	write(2 * traceLinesMax)
	check("slow", slow, `1024 {"lost":1024}`, "0")
	if text := reread(t, [][]byte{[]byte("{\"lost\":3}\n")}); text != "level=WARN msg=\"decisions were lost\" lost=3\n" {
		t.Errorf("a reader is told %q", text)
	}
}

// Gates are told when the first trace begins and when the last ends; the container's
// end ends all.
func TestTracesBeginAndEnd(t *testing.T) {
	var told []bool
	tracer := newTracer(func(on bool) { told = append(told, on) })
	var list []*trace
	for range tracesMax {
		x, err := tracer.open()
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, x)
	}
	if _, err := tracer.open(); !errors.Is(err, httpapi.ErrTraces) {
		t.Errorf("one too many: %v", err)
	}
	for _, x := range list {
		tracer.drop(x)
	}
	x, err := tracer.open()
	if err != nil || !slices.Equal(told, []bool{true, false, true}) {
		t.Errorf("told %v, %v", told, err)
	}
	fmt.Fprint(tracer, "last\n")
	tracer.close()
	<-x.ended.Done()
	if lines := x.take(); len(lines) != 1 {
		t.Errorf("%d lines are left, want the last", len(lines))
	}
	tracer.drop(x)
	if _, err := tracer.open(); !errors.Is(err, httpapi.ErrNoContainer) || len(told) != 3 {
		t.Errorf("after the container's end: %v, told %v", err, told)
	}
}

// Traces come and go while decisions are made.
func TestTracesAtOnce(t *testing.T) {
	var mu sync.Mutex
	on := false
	tracer := newTracer(func(to bool) {
		mu.Lock()
		defer mu.Unlock()
		if on == to {
			t.Errorf("told %v twice", to)
		}
		on = to
	})
	log, _ := tracedLog(tracer)
	// A trace has room for all lines of all, should its reader be the last to go on.
	const opened = 50
	const others = traceLinesMax/tracesMax - opened
	var all sync.WaitGroup
	for range tracesMax {
		all.Add(2)
		go func() {
			defer all.Done()
			for range others {
				log.Info("decided", "pid", 1)
			}
		}()
		go func() {
			defer all.Done()
			for range opened {
				x, err := tracer.open()
				if err != nil {
					t.Error(err)
					return
				}
				log.Info("mine")
				if !bytes.Contains(bytes.Join(x.take(), nil), []byte("mine")) {
					t.Error("a trace misses what came after it was opened")
				}
				tracer.drop(x)
			}
		}()
	}
	all.Wait()
	if on || tracer.wanted.Load() {
		t.Error("somebody seems to be there")
	}
}

// The last denials are kept while nobody traces: of refusals, and of all records with an errno that
// is not success.
func TestDenialsAreKept(t *testing.T) {
	tr := newTracer(func(bool) {})
	log, agents := tracedLog(tr)
	log.Info("answered", "errno", "EPERM") // nobody wants it
	log.InfoContext(graft.Refusals, "answered", "pid", 7, "syscall", gate.Bind, "fd", 3, "addr", netip.MustParseAddrPort("0.0.0.0:80"), "errno", "EADDRINUSE")
	log.InfoContext(graft.Refusals, "answered", "pid", 8, "errno", "0")
	list, err := tr.denials.list()
	if err != nil || len(list) != 1 || list[0].Time == "" {
		t.Fatalf("%+v %v", list, err)
	}
	list[0].Time = ""
	if want := (api.Denial{PID: 7, Syscall: "bind", FD: 3, Addr: "0.0.0.0:80", Errno: "EADDRINUSE"}); list[0] != want {
		t.Errorf("%+v, want %+v", list[0], want)
	}
	for n := range 2 * denialsKept {
		log.InfoContext(graft.Refusals, "answered", "pid", n, "errno", "EINVAL")
	}
	if list, err = tr.denials.list(); err != nil || len(list) != denialsKept || list[0].PID != denialsKept {
		t.Errorf("%d, the first of %d: %v", len(list), list[0].PID, err)
	}
	if strings.Contains(agents.String(), "EADDRINUSE") {
		t.Errorf("the agent's log has it: %s", agents)
	}
}
