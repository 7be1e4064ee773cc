package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/density/rig"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

func TestUsage(t *testing.T) {
	for args, want := range map[string]string{
		"-n 0":          "0 containers, want 1 to 1000",
		"-n 1001":       "1001 containers, want 1 to 1000",
		"-rounds 0":     "must be positive",
		"-duration 0s":  "must be positive",
		"-no-such-flag": "not defined",
		"300":           `unexpected argument "300"`,
	} {
		var stdout, stderr bytes.Buffer
		if code := run(strings.Fields(args), &stdout, &stderr); code != 2 {
			t.Errorf("%s: exit status %d, want 2", args, code)
		}
		if !strings.Contains(stderr.String(), want) || strings.Count(stderr.String(), "\n") != 1 {
			t.Errorf("%s: said %q, want one line with %q", args, stderr.String(), want)
		}
	}
}

func TestP99(t *testing.T) {
	var values []float64
	for i := 200; i > 0; i-- {
		values = append(values, float64(i))
	}
	if got := p99(values); got != 198 {
		t.Errorf("of 1 to 200 it is %v, want 198", got)
	}
	if got := p99([]float64{7}); got != 7 {
		t.Errorf("of one value it is %v, want that", got)
	}
}

// TestBench measures a few containers.
func TestBench(t *testing.T) {
	for _, program := range []string{"gcc", "runc", "iptables-save"} {
		testkit.Program(t, program)
	}
	testkit.Build(t, testkit.Options{}) // skips what the bench would fail at
	if _, err := rig.FindPlugins(); errors.Is(err, rig.ErrMissing) {
		t.Skipf("skip: %v", err)
	}
	var stdout, stderr bytes.Buffer
	args := []string{"-n", "4", "-rounds", "2", "-takeovers", "1", "-duration", "100ms", "-j", "-seed", "7"}
	if code := run(args, &stdout, &stderr); code != 0 {
		t.Fatalf("exit status %d: %s", code, stderr.String())
	}
	var report measure.Report
	if err := json.Unmarshal(stdout.Bytes(), &report); err != nil {
		t.Fatal(err)
	}
	counts := make(map[string]int)
	for _, res := range report.Results {
		key := res.Test + " " + res.Metric + " " + res.Mode
		counts[key] = len(res.Values)
		// There is a keeper only while one is needed.
		if res.Summary.Min <= 0 && !strings.Contains(res.Metric, "keeper") {
			t.Errorf("%s: %v", key, res.Values)
		}
	}
	for want, values := range map[string]int{
		"start wall bare": 4, "start wall bridge": 4, "start wall graft": 4, "start p99 graft": 1, "stop wall bridge": 4,
		"agent resident graft": 1, "agent files graft": 1, "per container gate_pss graft": 1,
		"per container keeper_pss graft": 1, "per container bpf_maps graft": 1, "per container iptables_rules bridge": 1,
		"takeover all graft": 1, "takeover longest_bind graft": 1, "takeover longest_connect graft": 1,
		"tcp_crr host rate alone": 2, "tcp_crr auto rate among": 2, "tcp_crr seccomp to_host among": 2,
	} {
		if counts[want] != values {
			t.Errorf("%s: %d values, want %d", want, counts[want], values)
		}
	}
}
