package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/tsugiki/tsugiki/bench/drive"
	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/bench/modes"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// goBench is a test that runs benchmarks of one of the project's packages, once in a round.
type goBench struct {
	name    string
	dir     string // of the package
	pattern string // of the benchmarks' names
	time    string // as -benchtime has it; empty: that of other measurements
	// metrics are what the benchmarks report, by their unit. The part of a benchmark's name after a slash
	// takes the place of the mode.
	metrics map[string]measure.Metric
}

var goBenches = []goBench{
	{
		name: "dns", dir: "translate/dns", pattern: "^BenchmarkProxy$", time: "1x", // 6,400 questions of 32 clients
		metrics: map[string]measure.Metric{
			"answers/s": {Name: "rate", Unit: "1/s", HigherIsBetter: true},
			"p50-us":    {Name: "p50", Unit: "us"},
			"p99-us":    {Name: "p99", Unit: "us"},
		},
	},
	{
		name: "mappings", dir: "translate", pattern: "^Benchmark(Memory|V6|V4|Reclaim)$",
		metrics: map[string]measure.Metric{
			"B/mapping": {Name: "size of one of 100,000", Unit: "B"},
			"ns/op":     {Name: "time", Unit: "ns"},
		},
	},
}

// translateTests are the tests of the figure translate.
func translateTests() []string {
	var names []string
	for _, t := range drive.Tests {
		names = append(names, t.Name)
	}
	for _, name := range inboundTests() {
		if name != drive.InPrefix+"udp_rr_unconnected" { // whose server makes the same calls
			names = append(names, name)
		}
	}
	for _, b := range goBenches {
		names = append(names, b.name)
	}
	return names
}

// load builds the benchmarks in a folder.
func (b goBench) load(f *figure, dir string) modes.Load {
	program := filepath.Join(dir, b.name+".test")
	root, err := testkit.ModuleRoot()
	start := func(ctx context.Context) error {
		if err != nil {
			return err
		}
		build := exec.CommandContext(ctx, "go", "test", "-c", "-o", program, "./"+b.dir)
		build.Dir = root
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	once := func(ctx context.Context, add func(string, measure.Metric, float64)) error {
		benchTime := b.time
		if benchTime == "" {
			benchTime = f.options.session.Duration.String()
		}
		bench := exec.CommandContext(ctx, program, "-test.run", "^$", "-test.bench", b.pattern, "-test.benchtime", benchTime)
		bench.Dir = filepath.Join(root, b.dir)
		out, err := bench.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return b.read(out, add)
	}
	return modes.Load{Name: b.name, Pin: modes.Anywhere, Start: start, Once: once}
}

// benchLine is "BenchmarkProxy/cached-2  1  6400 ns/op  0.5 p50-us".
var benchLine = regexp.MustCompile(`(?m)^Benchmark(\S+?)(?:-\d+)?\s+\d+\s(.*)$`)

// read reads what benchmarks print, and refuses a result that has none of the metrics.
func (b goBench) read(output []byte, add func(string, measure.Metric, float64)) error {
	lines := benchLine.FindAllSubmatch(output, -1)
	if len(lines) == 0 {
		return fmt.Errorf("no results in %q", output)
	}
	for _, line := range lines {
		fields := strings.Fields(string(line[2]))
		found := false
		for i := 0; i+1 < len(fields); i += 2 {
			m, wanted := b.metrics[fields[i+1]]
			if !wanted || m.Unit == "ns" && bytes.Contains(line[2], []byte("B/mapping")) { // which took nobody's time
				continue
			}
			value, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return fmt.Errorf("read %q: %w", line[0], err)
			}
			add(path.Base(string(line[1])), m, value)
			found = true
		}
		if !found {
			return fmt.Errorf("nothing that was asked for in %q", line[0])
		}
	}
	return nil
}
