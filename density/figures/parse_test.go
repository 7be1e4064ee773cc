package figures

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestReadPressure(t *testing.T) {
	got, err := readPressure(write(t, "some avg10=0.12 avg60=0.00 avg300=0.00 total=4211\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=17\n"))
	if err != nil || got != 4211 {
		t.Errorf("%v, %v, want 4211", got, err)
	}
	for _, text := range []string{"", "full avg10=0.00 total=17\n", "some avg10=0.00\n", "some total=x\n"} {
		if got, err := readPressure(write(t, text)); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

func TestReadBusy(t *testing.T) {
	busy, softirq, err := readBusy(write(t, "cpu  100 20 30 4000 500 6 7 8 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n"))
	if err != nil || busy != 100+20+30+6+7 || softirq != 7 {
		t.Errorf("busy %v, softirq %v, %v", busy, softirq, err)
	}
	for _, text := range []string{"", "cpu 1 2 3\n", "cpu0 1 2 3 4 5 6 7 8\n", "cpu 1 2 3 4 5 6 x 8\n"} {
		if _, _, err := readBusy(write(t, text)); err == nil {
			t.Errorf("%q is read", text)
		}
	}
}

func TestSince(t *testing.T) {
	begin := time.Now()
	before := observation{at: begin, stalled: map[string]float64{"cpu": 1e6, "io": 5}, busy: 1000, softirq: 10, throttled: 3}
	after := observation{
		at: begin.Add(2 * time.Second), stalled: map[string]float64{"cpu": 1.5e6, "io": 5}, busy: 1400, softirq: 30, throttled: 8,
		throttledFor: 20 * time.Millisecond,
	}
	want := map[string]float64{"psi_cpu": 25, "psi_io": 0, "softirq_share": 0.05, "nr_throttled": 5, "throttled_ms": 20}
	got := after.since(before)
	if len(got) != len(want) {
		t.Errorf("%v, want %v", got, want)
	}
	for name, value := range want {
		if math.Abs(got[name]-value) > 1e-9 {
			t.Errorf("%s is %v, want %v", name, got[name], value)
		}
	}
}

func TestUsageOfEach(t *testing.T) {
	before := usage{processes: 1000, agent: 500, slab: 2000, kernel: 3000, available: 100000}
	value, extra := usage{processes: 1400, agent: 520, slab: 2100, kernel: 3600, available: 98000}.each(before, 10)
	if value != 100 || extra["pss_kib"] != 40 || extra["kernel_kib"] != 60 || extra["agent_kib"] != 2 || extra["slab_kib"] != 10 || extra["available_kib"] != 200 {
		t.Errorf("%v, %v", value, extra)
	}
}

func TestSizes(t *testing.T) {
	for largest, want := range map[int][]int{1: {1}, 2: {1, 2}, 5: {1, 2, 4, 5}, 64: {1, 2, 4, 8, 16, 32, 64}} {
		if got := doubling(largest); !slices.Equal(got, want) {
			t.Errorf("to %d: %v, want %v", largest, got, want)
		}
	}
	for most, want := range map[int][]int{1: {1}, 2: {1, 2}, 64: {1, 10, 50, 64}, 300: {1, 10, 50, 100, 200, 300}, 400: {1, 10, 50, 100, 200, 300, 400}} {
		if got := stages(most); !slices.Equal(got, want) {
			t.Errorf("stages to %d: %v, want %v", most, got, want)
		}
	}
}

const fioReport = `{"fio version":"fio-3.33","jobs":[{"error":0,"read":{"bw_bytes":643182481,
	"clat_ns":{"percentile":{"50.000000":1500000,"95.000000":2000000,"99.000000":2500000}}}}]}`

func TestParseFio(t *testing.T) {
	r, err := parseFio([]byte(fioReport))
	if err != nil || math.Abs(r.MBps-643.182481) > 1e-9 || r.percentiles["p50"] != 1.5 || r.percentiles["p99"] != 2.5 {
		t.Errorf("%+v, %v", r, err)
	}
	for _, text := range []string{"", "fio: no such file", `{"jobs":[]}`, `{"jobs":[{"error":5,"read":{"bw_bytes":1}}]}`, `{"jobs":[{"read":{"bw_bytes":0}}]}`} {
		if r, err := parseFio([]byte(text)); err == nil {
			t.Errorf("%q is %+v", text, r)
		}
	}
}

func FuzzParseFio(f *testing.F) {
	f.Add([]byte(fioReport))
	f.Fuzz(func(t *testing.T, out []byte) {
		r, err := parseFio(out)
		if err == nil && !(r.MBps > 0) {
			t.Errorf("%+v", r)
		}
	})
}
