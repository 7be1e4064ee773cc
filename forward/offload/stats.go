package offload

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tsugiki/tsugiki/forward/offload/dpu"
)

// Stats are what the controller has done, and a collector of Prometheus. docs/METRICS.md has a line
// for each metric.
type Stats struct {
	mu      sync.Mutex // guards the rest
	numbers map[*prometheus.Desc]float64
	health  *dpu.Health
}

func describe(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("tsugiki_offload_"+name, help, nil, nil)
}

var (
	descHealthy     = describe("healthy", "1 if the DPU is reached and its switch works.")
	descPorts       = describe("ports", "Pods with flows in the switch.")
	descFlows       = describe("flows", "Flows in the switch.")
	descReplays     = describe("replays_total", "Times that all flows were replaced.")
	descReplayTime  = describe("replay_seconds_total", "Time that replacing all flows took.")
	descChanges     = describe("flow_changes_total", "Flows that were added, changed or deleted otherwise.")
	descCollected   = describe("ports_collected_total", "Ports of pods that were gone.")
	descGenerations = describe("generations_total", "Starts of ovs-vswitchd that the controller has seen.")
)

var counters = []*prometheus.Desc{descReplays, descReplayTime, descChanges, descCollected, descGenerations}

func newStats() *Stats {
	s := &Stats{numbers: map[*prometheus.Desc]float64{descHealthy: 0, descPorts: 0, descFlows: 0}}
	for _, d := range counters {
		s.numbers[d] = 0
	}
	return s
}

func (s *Stats) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// setHealth takes nil for a DPU that is not reached.
func (s *Stats) setHealth(h *dpu.Health) {
	s.change(func() {
		s.numbers[descHealthy] = 0
		if h == nil {
			return
		}
		if h.Fault == "" {
			s.numbers[descHealthy] = 1
		}
		if h.Generation != "" && (s.health == nil || s.health.Generation != h.Generation) {
			s.numbers[descGenerations]++
			s.health = h
		}
	})
}

func (s *Stats) setPorts(ports, flows int) {
	s.change(func() { s.numbers[descPorts], s.numbers[descFlows] = float64(ports), float64(flows) })
}

func (s *Stats) replayed(took time.Duration) {
	s.change(func() {
		s.numbers[descReplays]++
		s.numbers[descReplayTime] += took.Seconds()
	})
}

func (s *Stats) changed(flows int) {
	s.change(func() { s.numbers[descChanges] += float64(flows) })
}

func (s *Stats) collected(ports int) {
	s.change(func() { s.numbers[descCollected] += float64(ports) })
}

// Describe is of prometheus.Collector.
func (s *Stats) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(s, ch) }

// Collect is of prometheus.Collector.
func (s *Stats) Collect(ch chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d, n := range s.numbers {
		kind := prometheus.GaugeValue
		for _, c := range counters {
			if c == d {
				kind = prometheus.CounterValue
			}
		}
		ch <- prometheus.MustNewConstMetric(d, kind, n)
	}
}
