package main

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

func TestParseIperf(t *testing.T) {
	got, err := parseIperf([]byte(`{"end": {"sum_sent": {"bytes": 9}, "sum_received": {"bytes": 4e9, "bits_per_second": 3.2e10}}}`))
	if err != nil || got.Bytes != 4e9 || got.BitsPerSecond != 3.2e10 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, output := range []string{"", "{}", `{"error": "unable to connect to server"}`} {
		if _, err := parseIperf([]byte(output)); err == nil {
			t.Errorf("parseIperf(%q) gives no error", output)
		}
	}
}

func TestParseSockperf(t *testing.T) {
	output := []byte("sockperf: \x1b[2;35mTotal 5468 observations\x1b[0m; each percentile contains 54.68 observations\n" +
		"sockperf: ---> percentile 99.990 = 1428.366\n" +
		"sockperf: ---> percentile 99.000 =  165.697\n" +
		"sockperf: ---> percentile 50.000 =    9.367\n")
	for percentile, want := range map[int]float64{50: 9.367, 99: 165.697} {
		if got, err := parseSockperf(output, percentile); got != want || err != nil {
			t.Errorf("percentile %d is %v, %v; want %v", percentile, got, err, want)
		}
	}
	none := []byte("sockperf: [Total Run] RunTime=1.283 sec; SentMessages=1165\nsockperf: No valid observations found. Try tune parameters")
	if _, err := parseSockperf(none, 50); !errors.Is(err, errNothing) {
		t.Errorf("a run without observations: %v, want %v", err, errNothing)
	}
	if _, err := parseSockperf([]byte("sockperf: ERROR: No messages were received"), 50); err == nil {
		t.Error("no error for output without percentiles")
	}
}

func TestParseLog(t *testing.T) {
	rate, err := parseLog([]byte("1000.100\n1000.200\n1000.350\n"))
	if err != nil || math.Abs(rate-8) > 1e-6 {
		t.Errorf("rate %v, %v; want 8", rate, err)
	}
	for _, log := range []string{"", "1000.100\n", "1000.1\n1000.1\n", "a\nb\n"} {
		if _, err := parseLog([]byte(log)); err == nil {
			t.Errorf("parseLog(%q) gives no error", log)
		}
	}
}

// A log that cannot be read ends the wait for it.
func TestLogRate(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(log, bytes.Repeat([]byte("-\n"), connections), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	if _, err := logRate(ctx, log); !errors.Is(err, strconv.ErrSyntax) {
		t.Errorf("%v, want %v", err, strconv.ErrSyntax)
	}
}

// TestDemo runs one round without the graft, whose program may not be built.
func TestDemo(t *testing.T) {
	for _, name := range []string{"iperf3", "sockperf", "nginx", "curl"} {
		testkit.Program(t, name)
	}
	testkit.Build(t, testkit.Options{Containers: 1}) // skips what demo would fail at
	var stdout, stderr bytes.Buffer
	if code := run([]string{"-rounds", "1", "-modes", "host,nat"}, &stdout, &stderr); code != 0 {
		t.Fatalf("exit status %d: %s", code, stderr.String())
	}
	for _, want := range []string{
		"host", "nat", "iperf3 throughput", "iperf3 CPU of the machine",
		"sockperf tcp round trip p50", "sockperf udp round trip p99", "curl/nginx new connections", "(1.00)",
	} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("no %q in\n%s", want, stdout.String())
		}
	}
	if strings.Contains(stdout.String(), "  -") {
		t.Errorf("a figure is missing in\n%s", stdout.String())
	}
}
