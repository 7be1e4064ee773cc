package measure

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSummarize(t *testing.T) {
	tests := []struct {
		name   string
		values []float64
		want   Summary
	}{
		{"none", nil, Summary{}},
		{"one", []float64{3}, Summary{3, 3, 3, 3, 3}},
		{"odd number, unsorted", []float64{5, 1, 4, 2, 3}, Summary{Median: 3, Q1: 2, Q3: 4, Min: 1, Max: 5}},
		{"even number, interpolated", []float64{4, 1, 3, 2}, Summary{Median: 2.5, Q1: 1.75, Q3: 3.25, Min: 1, Max: 4}},
		{"an outlier moves no quartile", []float64{1, 1, 1, 1, 100}, Summary{Median: 1, Q1: 1, Q3: 1, Min: 1, Max: 100}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, Summarize(test.values)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestSummarizeIsOrdered(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		values := make([]float64, 1+random.IntN(20))
		for i := range values {
			values[i] = random.NormFloat64()
		}
		before := append([]float64(nil), values...)
		s := Summarize(values)
		if !(s.Min <= s.Q1 && s.Q1 <= s.Median && s.Median <= s.Q3 && s.Q3 <= s.Max) {
			t.Fatalf("%v: %+v", values, s)
		}
		if diff := cmp.Diff(before, values); diff != "" {
			t.Fatalf("the values were changed:\n%s", diff)
		}
	}
}

func TestRatios(t *testing.T) {
	got := Ratios([]float64{8, 9, 10, 1}, []float64{10, 10, 0})
	if diff := cmp.Diff([]float64{0.8, 0.9}, got); diff != "" {
		t.Error(diff)
	}
}

// sample is a report of two rounds, nat run before host.
func sample() *Report {
	r := &Report{Figure: "graft", Command: []string{"bench"}, Rounds: 2, Base: "host"}
	rate := Metric{Test: "tcp_rr", Name: "rate", Unit: "1/s", HigherIsBetter: true, CPUs: &Pinned{0, 1}}
	for _, v := range []float64{75, 100} {
		r.Add(rate, "nat", v)
	}
	for _, v := range []float64{100, 200} {
		r.Add(rate, "host", v)
	}
	r.Add(Metric{Test: "tcp_stream", Name: "cpu", Unit: "s/GB"}, "nat", 0.25)
	return r
}

func TestReport(t *testing.T) {
	r := sample()
	r.Finish([]string{"host", "nat", "graft"})
	want := []*Result{
		{
			Test: "tcp_rr", Metric: "rate", Unit: "1/s", Better: "higher", Mode: "host", CPUs: &Pinned{0, 1},
			Values:  []float64{100, 200},
			Summary: Summary{Median: 150, Q1: 125, Q3: 175, Min: 100, Max: 200},
			Ratios:  []float64{1, 1}, RatioToHost: &Summary{1, 1, 1, 1, 1},
		},
		{
			Test: "tcp_rr", Metric: "rate", Unit: "1/s", Better: "higher", Mode: "nat", CPUs: &Pinned{0, 1},
			Values:  []float64{75, 100},
			Summary: Summary{Median: 87.5, Q1: 81.25, Q3: 93.75, Min: 75, Max: 100},
			// The ratio of the medians would be 87.5/150.
			Ratios:      []float64{0.75, 0.5},
			RatioToHost: &Summary{Median: 0.625, Q1: 0.5625, Q3: 0.6875, Min: 0.5, Max: 0.75},
		},
		{
			Test: "tcp_stream", Metric: "cpu", Unit: "s/GB", Better: "lower", Mode: "nat",
			Values: []float64{0.25}, Summary: Summary{0.25, 0.25, 0.25, 0.25, 0.25},
		},
	}
	if diff := cmp.Diff(want, r.Results); diff != "" {
		t.Error(diff)
	}
}

// What is measured in no mode comes after the modes, and is compared to none.
func TestReportOfOthers(t *testing.T) {
	r := sample()
	r.Add(Metric{Test: "tcp_rr", Name: "rate"}, "driver alone", 400)
	r.Add(Metric{Test: "dns", Name: "p50", Unit: "us"}, "resolver", 90)
	r.Finish([]string{"host", "nat"})
	var got []string
	for _, res := range r.Results {
		got = append(got, res.Test+" "+res.Mode)
	}
	want := []string{"tcp_rr host", "tcp_rr nat", "tcp_rr driver alone", "tcp_stream nat", "dns resolver"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if last := r.Results[len(r.Results)-1]; last.Summary.Median != 90 || last.RatioToHost != nil {
		t.Errorf("%+v", last)
	}
}

func TestJSONKeysAreStable(t *testing.T) {
	r := sample()
	r.Finish([]string{"host", "nat"})
	path := filepath.Join(t.TempDir(), "graft.json")
	if err := r.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	wantKeys(t, got, "figure command started machine rounds duration_s seed base notes results")
	wantKeys(t, got["machine"].(map[string]any), "kernel cpus cpu_model congestion_control load_1min")
	first := got["results"].([]any)[0].(map[string]any)
	wantKeys(t, first, "test metric unit better mode cpus values summary ratios ratio_to_host")
	wantKeys(t, first["ratio_to_host"].(map[string]any), "median q1 q3 min max")
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
		t.Errorf("WriteFile left %d files, want 1", len(left))
	}
}

func wantKeys(t *testing.T, object map[string]any, keys string) {
	t.Helper()
	want := strings.Fields(keys)
	for _, key := range want {
		if _, ok := object[key]; !ok {
			t.Errorf("no key %q", key)
		}
	}
	if len(object) != len(want) {
		t.Errorf("%d keys, want %d: %v", len(object), len(want), object)
	}
}

func TestTable(t *testing.T) {
	r := sample()
	r.Finish([]string{"host", "nat"})
	r.Note("2 datagrams were lost")
	var out bytes.Buffer
	if err := r.WriteTable(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"ratios are to host",
		"tcp_rr      0,1   rate 1/s  host  150     [100..200]      50.0  1.00   [1.00..1.00]    0.000\n",
		"\n                            nat   87.5    [75.0..100]     12.5  0.625  [0.500..0.750]  0.125\n",
		"note: 2 datagrams were lost",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestBrief(t *testing.T) {
	r := sample()
	modes := []string{"host", "nat", "graft"}
	r.Finish(modes)
	var out bytes.Buffer
	if err := r.WriteBrief(&out, modes); err != nil {
		t.Fatal(err)
	}
	r.Add(Metric{Test: "dns", Name: "p50"}, "resolver", 90) // which is no mode
	want := "                      host        nat          graft\n" +
		"tcp_rr rate     1/s   150 (1.00)  87.5 (0.62)  -\n" +
		"tcp_stream cpu  s/GB  -           0.250        -\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

func TestThisMachine(t *testing.T) {
	m, err := ThisMachine("cubic")
	if err != nil || m.CPUs < 1 || m.Kernel == "" || !strings.Contains(m.String(), "cubic") {
		t.Errorf("%+v, %v", m, err)
	}
}
