package daemon

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

// A bucket has the times below its power of 2.
func TestBucket(t *testing.T) {
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
		Translation: &api.TranslationStats{Addresses: api.Addresses{InUse: int(n), Idle: 1, Free: 2}, Exhausted: n, Names: api.Names{Answered: n, Failed: n}, Relays: api.Relays{SIP: api.RelayedProtocol{Rewritten: n}, Datagrams: n}},
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

// What is exposed is as Prometheus wants it, for many containers. The linter compares each series with each other one,
// so it gets few; that none is there twice, the registry sees.
func TestCollect(t *testing.T) {
	registry := func(containers int) *prometheus.Registry {
		var list statsCollector
		for i := range containers {
			list = append(list, someStats(fmt.Sprintf("c-%d", i), uint64(i)))
		}
		r := prometheus.NewPedanticRegistry()
		r.MustRegister(list)
		return r
	}
	problems, err := testutil.GatherAndLint(registry(3))
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
	families, err := registry(300).Gather()
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
		data, err := os.ReadFile("../../docs/" + file)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	doc := text("API.md")
	for pattern := range new(Daemon).routes() {
		if !strings.Contains(doc, "`"+strings.NewReplacer("{container}", "NAME", "{endpoint}", "ENDPOINT", "{helper}", "ID", "{account}", "CONTAINER", "{uid}", "UID").Replace(pattern)+"`") {
			t.Errorf("docs/API.md does not have %s", pattern)
		}
	}
	doc = text("METRICS.md")
	descs := make(chan *prometheus.Desc)
	go func() {
		prometheus.DescribeByCollect(statsCollector{someStats("c", 1)}, descs)
		for _, d := range []*prometheus.Desc{descContainers, descPod, descSilent, descBuild} {
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
