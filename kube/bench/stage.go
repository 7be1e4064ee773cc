package main

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/kube/kubetest"
)

// stage is a time between two moments, and what was counted in it.
type stage struct {
	f      *figures
	name   string
	began  time.Time
	before answer
	server kubetest.Metrics // nil: the API server was not there
}

// begin begins a stage with a running API server.
func (f *figures) begin(name string) (*stage, error) {
	m, err := f.metrics()
	if err != nil {
		return nil, err
	}
	s, err := f.beginAway(name)
	if err != nil {
		return nil, err
	}
	s.server = m
	return s, nil
}

// metricsTries is how often the API server is asked for its metrics: one that has just started under load
// may not end its answer within its limit of a minute.
const metricsTries = 5

func (f *figures) metrics() (m kubetest.Metrics, err error) {
	for range metricsTries {
		if m, err = f.server.Metrics(); err == nil {
			break
		}
		time.Sleep(pollInterval)
	}
	return m, err
}

// beginAway begins a stage without an API server.
func (f *figures) beginAway(name string) (*stage, error) {
	a, err := f.fleet.ask(askBegin)
	return &stage{f: f, name: name, began: time.Now(), before: a}, err
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (s *stage) add(metric, mode, unit string, value float64) {
	s.f.report.Add(measure.Metric{Test: s.name, Name: metric, Unit: unit}, mode, value)
}

// addEach adds how long after the beginning something was done by each node that has done it.
func (s *stage) addEach(metric string, nodes map[string]time.Duration) {
	var list []float64
	for _, d := range nodes {
		list = append(list, milliseconds(d))
	}
	slices.Sort(list)
	s.add(metric, "p50", "ms", percentile(list, 50))
	s.add(metric, "p99", "ms", percentile(list, 99))
	s.add(metric, "max", "ms", percentile(list, 100))
}

// percentile is the value of a sorted list below or at which so many hundredths are.
func percentile(sorted []float64, hundredths int) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, (len(sorted)*hundredths+99)/100-1)]
}

// total is the traffic of all nodes.
func total(a *answer) *traffic {
	sum := &traffic{}
	for _, t := range a.Nodes {
		sum.add(&t, 1)
	}
	return sum
}

// since is what a sum is more than at the stage's beginning.
func (s *stage) since(sum *traffic) *traffic {
	more := &traffic{}
	more.add(sum, 1)
	more.add(total(&s.before), -1)
	return more
}

// done is how many requests of a kind had success.
func done(t *traffic, what string) int64 {
	c := t.Calls[what]
	return c.Requests - c.Throttled - c.Failed
}

// lists is how many times nodes have asked for all objects of a resource. A client first asks for a
// watch that begins with all objects, and for a list if the API server has no such watches.
func lists(t *traffic) (n int64) {
	resources := map[string]int64{}
	for what, c := range t.Calls {
		verb, resource, _ := strings.Cut(what, " ")
		if verb == listVerb || verb == watchListVerb {
			resources[resource] = max(resources[resource], c.Requests)
		}
	}
	for _, requests := range resources {
		n += requests
	}
	return n
}

// end ends a stage, and adds what was counted in it. With all, requests are shown by kind.
func (s *stage) end(all bool) error {
	took := time.Since(s.began).Seconds()
	after, err := s.f.fleet.ask(askTraffic)
	if err != nil {
		return err
	}
	m, err := s.f.metrics()
	if err != nil {
		return err
	}
	s.addTraffic(&after, took, all)
	s.addServer(m, took, all)
	return s.addLoad()
}

// endAway ends a stage at whose end there is no API server.
func (s *stage) endAway() error {
	after, err := s.f.fleet.ask(askTraffic)
	if err != nil {
		return err
	}
	s.addTraffic(&after, time.Since(s.began).Seconds(), true)
	return s.addLoad()
}

// addLoad adds the machine's load at the end of the stage, which others make, too.
func (s *stage) addLoad() error {
	load, err := measure.LoadAverage()
	s.add("load of the machine", "1 minute", "", load)
	return err
}

// addTraffic adds what the clients of nodes have counted.
func (s *stage) addTraffic(after *answer, took float64, all bool) {
	more, nodes := s.since(total(after)), float64(s.f.o.nodes)
	s.add("took", "", "s", took)
	var in []float64
	for name, t := range after.Nodes {
		in = append(in, float64(t.In-s.before.Nodes[name].In)/1024)
	}
	slices.Sort(in)
	s.add("from the API server to a node", "p50", "KiB", percentile(in, 50))
	s.add("from the API server to a node", "max", "KiB", percentile(in, 100))
	s.add("from a node to the API server", "mean", "KiB", float64(more.Out)/nodes/1024)
	s.add("lists of all nodes", "", "", float64(lists(more)))
	var sum calls
	for _, what := range slices.Sorted(maps.Keys(more.Calls)) {
		c := more.Calls[what]
		sum.add(c, 1)
		if all && c.Requests != 0 {
			s.add("requests of all nodes", what, "", float64(c.Requests))
		}
		if c.Throttled != 0 {
			s.add("requests of all nodes", what+": 429", "", float64(c.Throttled))
		}
		if c.Bytes != 0 {
			s.add("answers to a node", what, "KiB", float64(c.Bytes)/nodes/1024)
		}
	}
	s.add("requests of all nodes", "all", "", float64(sum.Requests))
	s.add("requests of all nodes", "all: 429", "", float64(sum.Throttled))
	s.add("requests of all nodes", "all: failed", "", float64(sum.Failed))
	s.add("requests of all nodes a second", "mean", "1/s", float64(sum.Requests)/took)
	peak := int64(0)
	for second, n := range after.Seconds {
		if second >= s.began.Unix() {
			peak = max(peak, n-s.before.Seconds[second])
		}
	}
	s.add("requests of all nodes a second", "peak", "1/s", float64(peak))
	for _, verb := range slices.Sorted(maps.Keys(after.Longest)) {
		s.add("longest time until a request had success", verb, "s", after.Longest[verb])
	}
	s.add("longest pause that the API server has asked for", "", "s", after.Pause)
	s.add("CPU time", "controllers of all nodes", "s", (after.CPU - s.before.CPU).Seconds())
}

// addServer adds what the API server has counted: also of kwok, and of tsugiki-kube cluster.
func (s *stage) addServer(after kubetest.Metrics, took float64, all bool) {
	sums := func(m kubetest.Metrics, name, key string) map[string]float64 {
		sum := map[string]float64{}
		m.Each(name, func(labels map[string]string, value, _ float64) { sum[labels[key]] += value })
		return sum
	}
	cpu := func(m kubetest.Metrics) float64 { return sums(m, "process_cpu_seconds_total", "")[""] }
	s.add("CPU time", "kube-apiserver", "s", cpu(after)-cpu(s.server))
	events, before := sums(after, "apiserver_watch_events_total", "resource"), sums(s.server, "apiserver_watch_events_total", "resource")
	for _, resource := range slices.Sorted(maps.Keys(events)) {
		if n := events[resource] - before[resource]; n > 0 && ours(resource) {
			s.add("events sent to all watches", resource, "", n)
		}
	}
	s.addFairness(after)
	if !all && s.name != "idle" {
		return
	}
	requests := map[string]float64{}
	for m, times := range map[*kubetest.Metrics]float64{&after: 1, &s.server: -1} {
		m.Each("apiserver_request_total", func(labels map[string]string, value, _ float64) {
			name := labels["verb"] + " " + labels["resource"]
			if sub := labels["subresource"]; sub != "" {
				name += "/" + sub
			}
			requests[strings.TrimSpace(name)] += times * value
		})
	}
	sum := 0.0
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		rate := requests[name] / took
		sum += rate
		if rate >= 1 {
			s.add("requests at the API server a second, of anybody", name, "1/s", rate)
		}
	}
	s.add("requests at the API server a second, of anybody", "all", "1/s", sum)
}

// addFairness adds how long requests have waited in the queues of the API server's priority and fairness,
// and how many it has turned away, by the level of priority and the FlowSchema.
func (s *stage) addFairness(after kubetest.Metrics) {
	waits, seconds, away := map[string]float64{}, map[string]float64{}, map[string]float64{}
	for m, times := range map[*kubetest.Metrics]float64{&after: 1, &s.server: -1} {
		m.Each("apiserver_flowcontrol_request_wait_duration_seconds", func(labels map[string]string, value, sum float64) {
			waits[flowOf(labels)] += times * value
			seconds[flowOf(labels)] += times * sum
		})
		m.Each("apiserver_flowcontrol_rejected_requests_total", func(labels map[string]string, value, _ float64) {
			away[flowOf(labels)+": "+labels["reason"]] += times * value
		})
	}
	for _, flow := range slices.Sorted(maps.Keys(waits)) {
		if n := waits[flow]; n > 0 {
			s.add("wait in a queue of priority and fairness", flow+": mean", "ms", seconds[flow]/n*1000)
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(away)) {
		if n := away[reason]; n > 0 {
			s.add("requests turned away by priority and fairness", reason, "", n)
		}
	}
}

func flowOf(labels map[string]string) string {
	return labels["priority_level"] + ", " + labels["flow_schema"]
}

// writes is how many requests the API server has had that write, but for leases of nodes.
func writes(m kubetest.Metrics) (n float64) {
	m.Each("apiserver_request_total", func(labels map[string]string, value, _ float64) {
		if slices.Contains([]string{"POST", "PUT", "PATCH", "APPLY", "DELETE"}, labels["verb"]) && labels["resource"] != "leases" {
			n += value
		}
	})
	return n
}

// ours tells whether nodes watch a resource.
func ours(resource string) bool {
	return slices.Contains([]string{"pods", "namespaces", "endpointslices", "graftendpoints", "graftpolicies"}, resource)
}
