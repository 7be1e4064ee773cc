package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

func TestUsage(t *testing.T) {
	tests := []struct {
		args string
		want string
	}{
		{"-figure density", `unknown figure "density"`},
		{"-figure translate -tests startup", `unknown test "startup"`},
		{"-figure translate -modes ipv6,host", "mode host is none of the figure translate"},
		{"-tests in_udp_rr", `unknown test "in_udp_rr"`},
		{"-modes host,tayga", "mode tayga is none of the figure graft"},
		{"-tests tcp_rr,tcp_xyz", `unknown test "tcp_xyz"`},
		{"-modes host,bare", `unknown mode "bare"`},
		{"-pin 3", `unknown pinning "3"`},
		{"-rounds 0", "0 rounds, want at least one"},
		{"-no-such-flag", "not defined"},
		{"graft", `unexpected argument "graft"`},
	}
	for _, test := range tests {
		t.Run(test.args, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if code := run(strings.Fields(test.args), &stdout, &stderr); code != 2 {
				t.Errorf("exit status %d, want 2", code)
			}
			if !strings.Contains(stderr.String(), test.want) || strings.Count(stderr.String(), "\n") != 1 {
				t.Errorf("said %q, want one line with %q", stderr.String(), test.want)
			}
		})
	}
}

// The test's program is the client of Go, too.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == goClientCommand {
		main()
		return
	}
	os.Exit(m.Run())
}

// measured runs the bench, and returns its report.
func measured(t *testing.T, args ...string) (report measure.Report) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if code := run(args, &stdout, &stderr); code != 0 {
		t.Fatalf("exit status %d: %s", code, stderr.String())
	}
	if err := json.Unmarshal(stdout.Bytes(), &report); err != nil {
		t.Fatal(err)
	}
	return report
}

// Containers of Docker are measured in both directions.
func TestBenchDocker(t *testing.T) {
	for _, program := range []string{"gcc", "dockerd", "iptables", "busybox", "nginx", "redis-server"} {
		testkit.Program(t, program)
	}
	testkit.BuildTsugiki(t)
	report := measured(t,
		"-j", "-modes", "host,docker-bridge,docker-host,docker-graft", "-tests", "tcp_rr,in_tcp_rr",
		"-rounds", "1", "-duration", "50ms", "-warmup", "10ms", "-pin", "anywhere",
	)
	seen := make(map[string]bool)
	for _, res := range report.Results {
		seen[res.Test+" "+res.Metric+" "+res.Mode] = true
	}
	for _, mode := range []string{"docker-bridge", "docker-host", "docker-graft"} {
		for _, test := range []string{"tcp_rr", "in_tcp_rr"} {
			if want := test + " rate " + mode; !seen[want] {
				t.Errorf("no result %s", want)
			}
		}
	}
}

// TestBench runs a short figure without the graft, whose program may not be
// built.
func TestBench(t *testing.T) {
	testkit.Program(t, "gcc")
	testkit.Build(t, testkit.Options{Containers: 1}) // skips what bench would fail at
	report := measured(t,
		"-j", "-modes", "host,nat", "-tests", "tcp_crr,go_crr_16,startup",
		"-rounds", "2", "-duration", "100ms", "-warmup", "10ms", "-pin", "anywhere", "-seed", "7",
	)
	if report.Seed != 7 || report.Machine.CongestionControl == "" {
		t.Errorf("the report does not say how it was made: %+v", report)
	}
	seen := make(map[string]bool)
	for _, res := range report.Results {
		seen[res.Test+" "+res.Metric+" "+res.Mode] = true
		// CPU time may be none: the kernel counts it in ticks.
		if len(res.Values) != 2 || (len(res.Ratios) != 2 && res.Metric != "cpu_machine") {
			t.Errorf("%s %s %s: %d values, %d ratios; want 2", res.Test, res.Metric, res.Mode, len(res.Values), len(res.Ratios))
		}
	}
	for _, want := range []string{"tcp_crr rate host", "tcp_crr p99 nat", "tcp_crr first_connect nat", "go_crr_16 rate nat", "go_crr_16 first_connect host", "startup wall nat"} {
		if !seen[want] {
			t.Errorf("no result %s", want)
		}
	}
}

// A short run measures other programs that connect namespaces beside the graft, in both directions.
func TestPeers(t *testing.T) {
	for _, name := range []string{"gcc", "pasta", "slirp4netns", "socat"} {
		testkit.Program(t, name)
	}
	testkit.BuildTsugiki(t)
	testkit.Build(t, testkit.Options{Containers: 1}) // skips what bench would fail at
	report := measured(t,
		"-j", "-modes", "host,nat,auto,pasta,slirp4netns", "-tests", "tcp_rr,in_tcp_stream,in_tcp_rr,in_tcp_crr",
		"-rounds", "1", "-duration", "20ms", "-warmup", "1ms", "-pin", "anywhere",
	)
	seen := make(map[string]bool)
	for _, res := range report.Results {
		seen[res.Test+" "+res.Metric+" "+res.Mode] = len(res.Ratios) == 1 && res.Ratios[0] > 0
	}
	for _, mode := range []string{"host", "nat", "auto", "pasta", "slirp4netns"} {
		for _, want := range []string{"tcp_rr rate", "in_tcp_stream throughput", "in_tcp_rr rate", "in_tcp_crr rate"} {
			if !seen[want+" "+mode] {
				t.Errorf("no result %s %s", want, mode)
			}
		}
	}
}
