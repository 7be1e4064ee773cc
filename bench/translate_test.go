package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/bench/modes"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

func TestReadGoBench(t *testing.T) {
	dns, mappings := goBenches[0], goBenches[1]
	read := func(b goBench, output string) (got []string, err error) {
		err = b.read([]byte(output), func(what string, m measure.Metric, value float64) {
			got = append(got, fmt.Sprintf("%s %s %s %g", what, m.Name, m.Unit, value))
		})
		return got, err
	}
	for _, tt := range []struct {
		bench  goBench
		output string
		want   []string
	}{
		{
			dns, "goos: linux\nBenchmarkProxy/unbound-2 \t 1\t 90 ns/op\t 5000 answers/s\t 1100 p50-us\t 42000 p99-us\n" +
				"BenchmarkProxy/cached \t 1\t 90 ns/op\t 900.0 p50-us\nPASS\n",
			[]string{"unbound rate 1/s 5000", "unbound p50 us 1100", "unbound p99 us 42000", "cached p50 us 900"},
		},
		{
			mappings, "BenchmarkMemory-2 \t 20\t 500 ns/op\t 88.10 B/mapping\nBenchmarkV6-2 \t 20\t 17.1 ns/op\n",
			[]string{"Memory size of one of 100,000 B 88.1", "V6 time ns 17.1"},
		},
	} {
		got, err := read(tt.bench, tt.output)
		if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
			t.Errorf("%v\n%s", err, diff)
		}
	}
	for _, output := range []string{"", "PASS", "BenchmarkProxy/unbound-2 \t 1\t 90 ns/op\n", "BenchmarkProxy-2 \t 1\t x p50-us\n"} {
		if got, err := read(dns, output); err == nil {
			t.Errorf("%q gives %v and no error", output, got)
		}
	}
}

// A short run measures each way of a program that knows IPv4 only, in both directions.
func TestTranslate(t *testing.T) {
	for _, name := range []string{"gcc", "dnsmasq", "tayga", "haproxy", "socat"} {
		testkit.Program(t, name)
	}
	testkit.BuildTsugiki(t)
	testkit.Build(t, testkit.Options{IPv6Only: true}) // skips what bench would fail at
	report := measured(t,
		"-j", "-figure", "translate", "-rounds", "1", "-duration", "20ms", "-warmup", "1ms", "-pin", "anywhere",
		"-tests", "tcp_stream,tcp_crr,udp_rr,udp_rr_unconnected,in_tcp_crr,in_udp_rr,mappings",
	)
	seen := make(map[string]bool)
	for _, res := range report.Results {
		seen[res.Test+" "+res.Metric+" "+res.Mode] = len(res.Values) == 1 && res.Values[0] > 0
		if res.Test != "mappings" && (len(res.Ratios) != 1 || res.Mode == string(modes.IPv6) && res.Ratios[0] != 1) {
			t.Errorf("%s %s %s is %v of IPv6", res.Test, res.Metric, res.Mode, res.Ratios)
		}
	}
	want := []string{"mappings size of one of 100,000 Memory", "mappings time V6", "mappings time V4", "mappings time Reclaim"}
	for _, mode := range modes.OnIPv6 {
		if missing := slices.IndexFunc(report.Notes, func(n string) bool { return strings.HasPrefix(n, "mode "+string(mode)+" is missing") }); missing >= 0 {
			if !strings.HasSuffix(report.Notes[missing], "in mode seccomp only") {
				t.Error(report.Notes[missing])
			}
			continue
		}
		for _, metric := range []string{"tcp_stream throughput", "tcp_stream cpu_processes", "tcp_crr p99", "in_tcp_crr rate"} {
			want = append(want, metric+" "+string(mode))
		}
		if mode != modes.HAProxy {
			want = append(want, "udp_rr p50 "+string(mode), "udp_rr_unconnected rate "+string(mode), "in_udp_rr rate "+string(mode))
		}
	}
	for _, result := range want {
		if !seen[result] {
			t.Errorf("no result %s", result)
		}
	}
}
