package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/bench/netdrive"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

func TestUsage(t *testing.T) {
	tests := []struct {
		args string
		want string
	}{
		{"-figure density", `unknown figure "density"`},
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

func TestDecode(t *testing.T) {
	s, err := decode([]byte(`{"test":"tcp_rr","ops":10,"bytes":20,"seconds":0.5,"p50_us":7.5}`))
	if err != nil || s.Ops != 10 || s.Seconds != 0.5 || s.P50 != 7.5 {
		t.Errorf("%+v, %v", s, err)
	}
	for _, line := range []string{"", "{}", `{"ops":0,"bytes":0,"seconds":1}`} {
		if _, err := decode([]byte(line)); err == nil {
			t.Errorf("decode(%q) gives no error", line)
		}
	}
}

// TestDriver runs every test of netdrive over IPv6 in a namespace.
func TestDriver(t *testing.T) {
	testkit.Program(t, "gcc")
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	driver, err := netdrive.Build(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	top := testkit.Build(t, testkit.Options{})
	for _, test := range tests {
		if test.goAtOnce > 0 {
			continue // its client is another program, which TestBench runs
		}
		t.Run(test.name, func(t *testing.T) {
			address := []string{test.name, testkit.RemoteAddr6.String(), "7000", "-s", "100"}
			server := top.Remote.Command(ctx, driver, append([]string{"server"}, address...)...)
			if err := server.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = server.Process.Kill()
				_ = server.Wait() // killed
			}()
			if err := top.Remote.WaitListen(ctx, test.network, 7000); err != nil {
				t.Fatal(err)
			}
			out, err := top.Host.Command(ctx, driver, append([]string{"client"}, append(address, "-t", "0.1", "-w", "0.05")...)...).Output()
			if err != nil {
				t.Fatal(err)
			}
			s, err := decode(out)
			if err != nil {
				t.Fatal(err)
			}
			// It counts until 0.1 s have passed, however long that takes.
			if s.Seconds < 0.1 || s.TotalBytes <= s.Bytes || s.P50 <= 0 || s.P99 < s.P50 || s.Connect <= 0 {
				t.Errorf("not plausible: %s", out)
			}
		})
	}
}

func TestDriverFails(t *testing.T) {
	testkit.Program(t, "gcc")
	ctx := context.Background()
	driver, err := netdrive.Build(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	top := testkit.Build(t, testkit.Options{})
	out, err := top.Host.Command(ctx, driver, "client", "tcp_rr", testkit.RemoteAddr4.String(), "7001").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "connect: Connection refused") {
		t.Errorf("no server: %v, %s", err, out)
	}
	err = exec.Command(driver, "client", "tcp_rr", "nowhere", "1").Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 2 {
		t.Errorf("wrong usage: %v, want exit status 2", err)
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
		if len(res.Values) != 2 || len(res.Ratios) != 2 {
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
