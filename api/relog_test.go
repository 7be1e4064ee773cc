package api

import (
	"bytes"
	"io"
	"log/slog"
	"strings"
	"testing"
)

// A trace is logged line by line, as the agent logged it, up to a line that is none.
func TestRelog(t *testing.T) {
	const decided = `{"time":"2026-01-02T03:04:05Z","level":"INFO","msg":"decided","pid":1,"addr":"1.2.3.4:5"}` + "\n"
	const first = "level=INFO msg=decided pid=1 addr=1.2.3.4:5\n"
	for _, tt := range []struct {
		trace, want string
		fails       bool
	}{
		{decided + `{"time":"2026-01-02T03:04:05Z","lost":3}` + "\n", first + "level=WARN msg=\"decisions were lost\" lost=3\n", false},
		{decided + "decided\n" + decided, first, true},
		{`{"time":1}` + "\n", "", true},
		{`{"addr":"` + strings.Repeat("a", traceLineMax) + "\"}\n", "", true},
	} {
		var got bytes.Buffer
		to := slog.NewTextHandler(&got, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}})
		err := Relog(io.NopCloser(strings.NewReader(tt.trace)), to)
		if got.String() != tt.want || (err != nil) != tt.fails {
			t.Errorf("Relog(%.80q): %q, %v; want %q", tt.trace, got.String(), err, tt.want)
		}
	}
}

// Whatever a line of a trace is, it is read or refused.
func FuzzParseLine(f *testing.F) {
	f.Add([]byte(`{"time":"2026-01-02T03:04:05.000000006Z","level":"INFO","msg":"decided","pid":1,"addr":"1.2.3.4:5"}`))
	f.Add([]byte(`{"lost":3}`))
	f.Add([]byte(`{"a":{"b":[1,null]},"":""}`))
	f.Add([]byte(`[1`))
	f.Fuzz(func(_ *testing.T, line []byte) { _, _ = parseLine(line) })
}
