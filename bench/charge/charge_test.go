package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// TestMain is also what the bench starts of itself.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && programs[os.Args[1]] != nil {
		os.Exit(dispatch(os.Args[1:]))
	}
	os.Exit(m.Run())
}

func TestUsage(t *testing.T) {
	for args, want := range map[string]string{
		"-rounds 0":             "must be positive",
		"-many 0":               "must be positive",
		"-seconds 0":            "must be positive",
		"-figure nothing":       `unknown figure "nothing"`,
		"-variants off,nothing": `unknown variant "nothing"`,
		"-commands nothing":     `unknown command "nothing"`,
		"-logger nothing":       `unknown logger "nothing"`,
		"-no-such-flag":         "not defined",
		"-quick accuracy":       `unexpected argument "accuracy"`,
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

// The clock of a process counts what it does, and not the time that passes: no more than the
// kernel says that it has taken when it has ended.
func TestProcessCPU(t *testing.T) {
	for program, enough := range map[string]time.Duration{
		"while :; do :; done": 50 * time.Millisecond,
		"exec sleep 60":       time.Nanosecond,
	} {
		cmd := exec.Command("sh", "-c", program)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var took time.Duration
		testkit.Eventually(t, func() (err error) {
			took, err = processCPU(cmd.Process.Pid)
			if err == nil && took < enough {
				err = fmt.Errorf("%s took %v", program, took)
			}
			return err
		})
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // killed
		if all := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(); took > all+rounding {
			t.Errorf("%s took %v by then, and %v in all", program, took, all)
		}
		if d, err := processCPU(cmd.Process.Pid); err == nil {
			t.Errorf("%s has ended, and took %v", program, d)
		}
	}
}

// rounding is what user and system time lose: each is in whole microseconds.
const rounding = 2 * time.Microsecond

// TestBench measures one container and two, for a second each, without charging.
func TestBench(t *testing.T) {
	for _, program := range []string{"containerd", "ctr", "runc", "busybox", "sysbench"} {
		testkit.Program(t, program)
	}
	testkit.Build(t, testkit.Options{}) // skips what the bench would fail at
	file := filepath.Join(t.TempDir(), "charge.json")
	var stdout, stderr bytes.Buffer
	args := []string{"-quick", "-figure", "accuracy,isolation,shared,softirq", "-variants", "off", "-commands", "yes", "-logger", "line", "-o", file, "-seed", "7"}
	if code := run(args, &stdout, &stderr); code != 0 {
		t.Fatalf("exit status %d: %s", code, stderr.String())
	}
	for _, want := range []string{"Table 2: ", "Table 3: ", "Table 4: ", "96.04", "0.50"} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("no %q in\n%s", want, stdout.String())
		}
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var report measure.Report
	if err := json.Unmarshal(data, &report); err != nil {
		t.Fatal(err)
	}
	// What the figures are is for the bench to say. Here they have to be measured, and what they
	// can be: more than 0, and of a container with a quota less than a CPU.
	yes := commands[0]
	accuracy := accuracyTest(yes, 20*time.Millisecond)
	container := wantMeasured(t, &report, accuracy, "container", 100)
	logger := wantMeasured(t, &report, accuracy, "logger", math.Inf(1))
	sum := wantMeasured(t, &report, accuracy, "sum", math.Inf(1))
	if math.Abs(sum-container-logger) > 1e-6 {
		t.Errorf("%s: container %v and logger %v are %v", accuracy, container, logger, sum)
	}
	wantMeasured(t, &report, isolationTest(yes, 2), "share_to_dd", math.Inf(1))
	wantMeasured(t, &report, isolationTest(baseline, 1), "events", math.Inf(1))
	wantMeasured(t, &report, "shared yes", "daemon's part", math.Inf(1))
	wantMeasured(t, &report, "shared cat", "container", 100)
	wantMeasured(t, &report, "softirq flooded", "share", math.Inf(1))
	wantMeasured(t, &report, "softirq other", "events_to_quiet", math.Inf(1))
	for _, name := range []string{"accuracy-yes", "isolation-yes"} {
		plot, err := os.ReadFile(strings.TrimSuffix(file, ".json") + "-" + name + ".svg")
		if errors.Is(err, os.ErrNotExist) || !bytes.Contains(plot, []byte("</svg>")) {
			t.Errorf("plot %s: %d bytes, %v", name, len(plot), err)
		}
	}
}

// wantMeasured returns a figure, which is more than 0, and most at most.
func wantMeasured(t *testing.T, r *measure.Report, test, metric string, most float64) float64 {
	t.Helper()
	found := find(r, test, metric, "off")
	if found == nil {
		t.Errorf("%s: no %s", test, metric)
		return math.NaN()
	}
	s := found.Summary
	if !(s.Median > 0 && s.Median <= most) || math.IsInf(s.Median, 1) {
		t.Errorf("%s: %s is %v, want more than 0, and %v at most", test, metric, s.Median, most)
	}
	return s.Median
}

// TestTables prints what no machine has to measure first.
func TestTables(t *testing.T) {
	o, err := parse([]string{"-quick", "-rounds", "2", "-figure", "accuracy,isolation", "-variants", "quota", "-commands", "cat"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	s := &session{options: o}
	cat, quota := o.commands[0], o.variants[0]
	for i := range o.rounds {
		more := float64(i)
		s.add(quota, accuracyTest(cat, 20*time.Millisecond), "logger", "%", 7+more)
		s.add(quota, isolationTest(cat, 2), "share_to_dd", "ratio", 0.5+more/4)
	}
	s.report.Finish([]string{quota.name})
	var out bytes.Buffer
	if err := o.writeTables(&s.report, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Table 6: cat, quota, %", "20ms   7.50 [7.00..8.00]  7.52   -          4.71",
		"Table 9: ", "2  -           0.625 [0.500..0.750]  0.93",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}
