package api

import "testing"

// Whatever a line of a trace is, it is read or refused.
func FuzzParseLine(f *testing.F) {
	f.Add([]byte(`{"time":"2026-01-02T03:04:05.000000006Z","level":"INFO","msg":"decided","pid":1,"addr":"1.2.3.4:5"}`))
	f.Add([]byte(`{"lost":3}`))
	f.Add([]byte(`{"a":{"b":[1,null]},"":""}`))
	f.Add([]byte(`[1`))
	f.Fuzz(func(_ *testing.T, line []byte) { _, _ = parseLine(line) })
}
