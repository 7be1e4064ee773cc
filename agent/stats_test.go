package agent

import (
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/gate"
)

func TestQuantile(t *testing.T) {
	times := func(counts map[int]uint64) []uint64 {
		list := make([]uint64, gate.TimeBuckets)
		for power, n := range counts {
			list[power] = n
		}
		return list
	}
	for _, tt := range []struct {
		times []uint64
		q     float64
		want  time.Duration
	}{
		{nil, 0.5, 0},
		{times(nil), 0.99, 0},
		{times(map[int]uint64{10: 1}), 1, 1024},
		{times(map[int]uint64{10: 2}), 0.5, 768},
		{times(map[int]uint64{10: 50, 20: 50}), 0.5, 1024},
		{times(map[int]uint64{10: 98, 20: 2}), 0.99, 3 << 18},
		{times(map[int]uint64{0: 1}), 1, 1},
		{times(map[int]uint64{31: 1}), 1, 1 << 31},
	} {
		if got := quantile(tt.times, tt.q); got != tt.want {
			t.Errorf("%v of %v: %v, want %v", tt.q, tt.times, got, tt.want)
		}
	}
	for d, want := range map[time.Duration]int{-1: 0, 0: 0, 1: 1, 2: 2, 3: 2, 1023: 10, 1024: 11, math.MaxInt64: gate.TimeBuckets - 1} {
		if got := gate.Bucket(d); got != want {
			t.Errorf("%v is in bucket %d, want %d", d, got, want)
		}
	}
}

// someStats are a container's that has counted n of everything.
func someStats(name string, n uint64) api.ContainerStats {
	times := make([]uint64, gate.TimeBuckets)
	times[12], times[31] = n, n
	d := api.Decisions{Calls: map[string]uint64{"connect": n, "socket": n}, Refused: n, Times: times}
	return api.ContainerStats{
		ID: name, Name: name, State: stateRunning, Gates: 1, Connections: api.Connections{Out: n, In: n},
		Denied: api.Denied{Connect: n, Bind: n, Send: n, SetSockOpt: n, Leave: n, Enter: n}, Gate: d, Agent: d,
		Pool: api.Pool{Batches: n, Sockets: n, Single: n, Misses: n}, Memory: n << 10,
	}
}

func TestRates(t *testing.T) {
	at := func(second int, list ...api.ContainerStats) *api.Stats {
		return &api.Stats{Time: time.Unix(int64(second), 0).UTC().Format(time.RFC3339Nano), Containers: list}
	}
	rates, err := Rates(at(1, someStats("a", 100), someStats("b", 0), someStats("gone", 5)),
		at(3, someStats("a", 110), someStats("b", 40), someStats("new", 2)))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range rates {
		got = append(got, fmt.Sprintf("%s %v %v %v %v %v %v %v", r.Name, r.Out, r.In, r.Gate, r.Agent, r.Denied, r.Misses, r.P50))
	}
	want := "b 20 20 40 40 120 20 4.096µs\na 5 5 10 10 30 5 4.096µs\nnew 1 1 2 2 6 1 4.096µs"
	if text := strings.Join(got, "\n"); text != want {
		t.Errorf("rates are\n%s\nwant\n%s", text, want)
	}
	// The agent's own counters began anew.
	restarted, err := Rates(at(1, someStats("a", 100)), at(2, someStats("a", 30)))
	if err != nil || restarted[0].Gate != 60 {
		t.Errorf("after a restart: %+v %v", restarted, err)
	}
	if same, err := Rates(at(1, someStats("a", 1)), at(1, someStats("a", 2))); err != nil || same[0].Out != 0 {
		t.Errorf("within no time: %+v %v", same, err)
	}
}

// statsCollector exposes statistics that are given.
type statsCollector []api.ContainerStats

func (statsCollector) Describe(chan<- *prometheus.Desc) {}

func (c statsCollector) Collect(out chan<- prometheus.Metric) {
	for i := range c {
		collectContainer(out, &c[i])
	}
}

// What is exposed is as Prometheus wants it, for many containers.
func TestCollect(t *testing.T) {
	var many statsCollector
	for i := range 300 {
		many = append(many, someStats(fmt.Sprintf("c-%d", i), uint64(i)))
	}
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(many)
	problems, err := testutil.GatherAndLint(r)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if n := len(f.Metric); n%300 != 0 || n > 300*8 {
			t.Errorf("%s: %d series of 300 containers", f.GetName(), n)
		}
	}
}

func TestHistogram(t *testing.T) {
	times := make([]uint64, gate.TimeBuckets)
	times[3], times[10], times[11], times[30], times[31] = 1, 2, 4, 8, 16
	var m dto.Metric
	if err := histogram(times, "c", byGate).Write(&m); err != nil {
		t.Fatal(err)
	}
	h := m.Histogram
	below := map[float64]uint64{}
	for _, b := range h.Bucket {
		below[b.GetUpperBound()] = b.GetCumulativeCount()
	}
	if len(below) != len(bucketPowers) || below[1024e-9] != 3 || below[4096e-9] != 7 || below[float64(1<<30)/1e9] != 15 || h.GetSampleCount() != 31 {
		t.Errorf("%v of %d", below, h.GetSampleCount())
	}
	if want := (6 + 2*768 + 4*1536 + 8*0.75*(1<<30) + 16*0.75*(1<<31)) / 1e9; math.Abs(h.GetSampleSum()-want) > 1e-6 {
		t.Errorf("the sum is %v, want %v", h.GetSampleSum(), want)
	}
}

// docs/API.md and docs/METRICS.md have all that there is.
func TestDocumented(t *testing.T) {
	text := func(file string) string {
		data, err := os.ReadFile("../docs/" + file)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	doc := text("API.md")
	for _, r := range new(Daemon).routes() {
		if !strings.Contains(doc, "`"+strings.NewReplacer("{container}", "NAME", "{endpoint}", "ENDPOINT", "{helper}", "ID", "{account}", "CONTAINER").Replace(r.pattern)+"`") {
			t.Errorf("docs/API.md does not have %s", r.pattern)
		}
	}
	doc = text("METRICS.md")
	descs := make(chan *prometheus.Desc)
	go func() {
		prometheus.DescribeByCollect(statsCollector{someStats("c", 1)}, descs)
		for _, d := range []*prometheus.Desc{descContainers, descSilent, descBuild} {
			descs <- d
		}
		close(descs)
	}()
	for d := range descs {
		_, rest, _ := strings.Cut(d.String(), `fqName: "`)
		name, _, _ := strings.Cut(rest, `"`)
		if !strings.Contains(doc, "`"+name+"`") {
			t.Errorf("docs/METRICS.md does not have %s", name)
		}
	}
}
