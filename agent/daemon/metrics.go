package daemon

import (
	"fmt"
	"net"
	"net/http"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tsugiki/tsugiki/agent/httpapi"
	"github.com/tsugiki/tsugiki/api"
)

// Metrics for Prometheus. Only the labels with names of containers and of calls have many values.
// docs/METRICS.md describes the metrics for readers.

const (
	// scrapesMax is the number of scrapes at once.
	scrapesMax = 4
	// metricsConnections is the number of connections at once at the configured address.
	metricsConnections = 64
)

// Who answers a call.
const (
	byGate   = "gate"
	byAgent  = "agent"
	byKernel = "kernel"
)

func containerDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("tsugiki_"+name, help, append([]string{"container"}, labels...), nil)
}

var (
	descContainers  = prometheus.NewDesc("tsugiki_containers", "Containers of the agent.", []string{"state"}, nil)
	descPod         = containerDesc("pod_info", "The pod of Kubernetes that a container is of; always 1.", "namespace", "pod", "pod_container", "uid")
	descSilent      = prometheus.NewDesc("tsugiki_gates_silent_total", "Times that a gate did not say in time what it has counted.", nil, nil)
	descBuild       = prometheus.NewDesc("tsugiki_build_info", "What the agent was built from; always 1.", []string{"version", "revision", "goversion"}, nil)
	descConnections = containerDesc("connections_total", "TCP connections of host sockets that were established.", "direction")
	descDenied      = containerDesc("denied_total", "Calls that the kernel programs refused.", "call")
	descDecisions   = containerDesc("decisions_total", "Calls that were decided about, by whom.", "call", "by")
	descRefusals    = containerDesc("refusals_total", "Trapped calls that were answered with an error.", "by")
	descSeconds     = containerDesc("decision_seconds", "Time that it took to answer a trapped call. The sum is estimated from the buckets.", "by")
	descBatches     = containerDesc("pool_batches_total", "Batches of sockets that were handed to programs in advance.")
	descSockets     = containerDesc("pool_sockets_total", "Sockets that were handed to programs in advance.")
	descSingle      = containerDesc("pool_single_total", "Sockets that were made one at a time.")
	descMisses      = containerDesc("pool_misses_total", "Sockets that were made one at a time because a program had none left.")
	descAgain       = containerDesc("calls_asked_again_total", "Calls that were put to another agent again after a restart.")
	descDelayed     = containerDesc("calls_delayed_total", "Calls that had to wait to be put to an agent.")
	descUnreported  = containerDesc("trace_unreported_total", "Decisions that no trace was told of, for want of time.")
	descMemory      = containerDesc("helpers_resident_bytes", "Memory of the container's gates and keepers.")
)

// Of containers whose IPv4 is translated.
var (
	descAddresses  = containerDesc("translate_addresses", "Virtual addresses of a container.", "state")
	descReclaimed  = containerDesc("translate_reclaimed_total", "Virtual addresses that another host got.")
	descExhausted  = containerDesc("translate_exhausted_total", "Hosts without a virtual address, because all were in use.")
	descRefused    = containerDesc("translate_refused_total", "Addresses without a virtual one: special ones, and the host's own.")
	descQuestions  = containerDesc("translate_questions_total", "Questions of programs for names.", "result")
	descUnanswered = containerDesc("translate_unanswered_total", "Questions to which no resolver had an answer.")
	descForged     = containerDesc("translate_forged_total", "Messages to the DNS proxy that were no answer to its question.")
	descRelayed    = containerDesc("translate_relayed_connections_total", "Connections of FTP and SIP.", "protocol", "result")
	descMessages   = containerDesc("translate_relayed_messages_total", "Messages of FTP and SIP with addresses.", "protocol", "result")
	descDatagrams  = containerDesc("translate_relayed_datagrams_total", "Datagrams of SIP's ports.", "result")
)

// Of virtual machines.
var (
	descGuestOpen   = containerDesc("guest_connections", "Vsock connections of a virtual machine that are open.")
	descGuestConns  = containerDesc("guest_connections_total", "Vsock connections of a virtual machine.", "by")
	descGuestBytes  = containerDesc("guest_bytes_total", "Bytes of a virtual machine's vsock connections.", "direction")
	descGuestResets = containerDesc("guest_resets_total", "Vsock connections of a virtual machine that ended before both sides had said so.")
	descGuestBoots  = containerDesc("guest_boots_total", "VMMs that have connected for a virtual machine.")
	descGuestFaults = containerDesc("guest_faults_total", "Times that a virtual machine has lost its device, because it or its VMM has broken the device's rules.")
)

// bucketPowers are the upper bounds of decision_seconds, as powers of 2 ns: from 1
// us to 1 s.
var bucketPowers = []int{10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30}

// collector returns the counters of the containers at each scrape.
type collector struct{ d *Daemon }

// Describe sends nothing, because the series depend on the containers.
func (collector) Describe(chan<- *prometheus.Desc) {}

func (c collector) Collect(out chan<- prometheus.Metric) {
	stats := c.d.stats()
	states := map[string]int{stateCreated: 0, stateRunning: 0}
	for i := range stats.Containers {
		s := &stats.Containers[i]
		states[s.State]++
		collectContainer(out, s)
	}
	for _, m := range c.d.all() {
		if p := m.Pod; p != nil {
			out <- prometheus.MustNewConstMetric(descPod, prometheus.GaugeValue, 1, m.Name, p.Namespace, p.Name, p.Container, p.UID)
		}
	}
	for state, n := range states {
		out <- prometheus.MustNewConstMetric(descContainers, prometheus.GaugeValue, float64(n), state)
	}
	if c.d.accounts != nil {
		collectCharges(out, c.d.charges())
		out <- prometheus.MustNewConstMetric(descMissed, prometheus.GaugeValue, float64(c.d.accounts.Missed()))
	}
	c.d.collectPods(out)
	out <- prometheus.MustNewConstMetric(descSilent, prometheus.CounterValue, float64(c.d.silent.Load()))
}

func collectContainer(out chan<- prometheus.Metric, s *api.ContainerStats) {
	count := func(desc *prometheus.Desc, n uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), append([]string{s.Name}, labels...)...)
	}
	count(descConnections, s.Connections.Out, "out")
	count(descConnections, s.Connections.In, "in")
	count(descDenied, s.Denied.Connect, "connect")
	count(descDenied, s.Denied.Bind, "bind")
	count(descDenied, s.Denied.Send, "send")
	count(descDenied, s.Denied.SetSockOpt, "setsockopt")
	count(descDenied, s.Denied.Leave, "leave")
	count(descDenied, s.Denied.Enter, "enter")
	for call, n := range s.Kernel.Calls {
		count(descDecisions, n, call, byKernel)
	}
	for by, d := range map[string]*api.Decisions{byGate: &s.Gate, byAgent: &s.Agent} {
		for call, n := range d.Calls {
			count(descDecisions, n, call, by)
		}
		count(descRefusals, d.Refused, by)
		out <- histogram(d.Times, s.Name, by)
	}
	count(descBatches, s.Pool.Batches)
	count(descSockets, s.Pool.Sockets)
	count(descSingle, s.Pool.Single)
	count(descMisses, s.Pool.Misses)
	count(descAgain, s.AskedAgain)
	count(descDelayed, s.Delayed)
	count(descUnreported, s.Unreported)
	out <- prometheus.MustNewConstMetric(descMemory, prometheus.GaugeValue, float64(s.Memory), s.Name)
	if g := s.Guest; g != nil {
		out <- prometheus.MustNewConstMetric(descGuestOpen, prometheus.GaugeValue, float64(g.Open), s.Name)
		count(descGuestConns, g.Opened, "guest")
		count(descGuestConns, g.Dialed, "host")
		count(descGuestBytes, g.FromGuest, "out")
		count(descGuestBytes, g.ToGuest, "in")
		count(descGuestResets, g.Resets)
		count(descGuestBoots, g.Boots)
		count(descGuestFaults, g.Faults)
	}
	if t := s.Translation; t != nil {
		for state, n := range map[string]int{"in_use": t.Addresses.InUse, "idle": t.Addresses.Idle, "free": t.Addresses.Free} {
			out <- prometheus.MustNewConstMetric(descAddresses, prometheus.GaugeValue, float64(n), s.Name, state)
		}
		count(descReclaimed, t.Reclaimed)
		count(descExhausted, t.Exhausted)
		count(descRefused, t.Refused)
		count(descQuestions, t.Names.Answered, "answered")
		count(descQuestions, t.Names.Failed, "failed")
		count(descUnanswered, t.Names.Unanswered)
		count(descForged, t.Names.Forged)
		for protocol, r := range map[string]api.RelayedProtocol{"ftp": t.Relays.FTP, "sip": t.Relays.SIP} {
			count(descRelayed, r.Connections, protocol, "relayed")
			count(descRelayed, r.Full, protocol, "refused")
			count(descMessages, r.Rewritten, protocol, "rewritten")
			count(descMessages, r.Refused, protocol, "refused")
		}
		count(descDatagrams, t.Relays.Datagrams, "relayed")
		count(descDatagrams, t.Relays.Lost, "lost")
	}
}

// histogram makes a histogram of the buckets of api.Decisions. Its sum takes each time as the
// middle of the time's bucket.
func histogram(times []uint64, labels ...string) prometheus.Metric {
	buckets := map[float64]uint64{}
	var total uint64
	var sum float64
	next := 0
	for power, n := range times {
		total += n
		sum += float64(n) * middle(power).Seconds()
		if next < len(bucketPowers) && bucketPowers[next] == power {
			buckets[(time.Duration(1) << power).Seconds()] = total
			next++
		}
	}
	return prometheus.MustNewConstHistogram(descSeconds, total, sum, buckets, labels...)
}

// middle returns the middle of a bucket.
func middle(power int) time.Duration { return 3 * (time.Duration(1) << power) / 4 }

func buildInfo() prometheus.Metric {
	version, revision := "unknown", "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		version = info.Main.Version
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				revision = s.Value
			}
		}
	}
	return prometheus.MustNewConstMetric(descBuild, prometheus.GaugeValue, 1, version, revision, runtime.Version())
}

// constant is a collector of a metric that does not change.
type constant struct{ prometheus.Metric }

func (c constant) Describe(out chan<- *prometheus.Desc) { out <- c.Desc() }
func (c constant) Collect(out chan<- prometheus.Metric) { out <- c.Metric }

// metricsHandler serves the metrics of the daemon.
func (d *Daemon) metricsHandler() http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(collector{d}, constant{buildInfo()}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{MaxRequestsInFlight: scrapesMax})
}

// serveMetrics serves the metrics, and nothing else, to whoever can reach an
// address.
func (d *Daemon) serveMetrics(addr string) (*http.Server, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("serve metrics: %w; choose another address with [metrics] listen", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", d.metricsHandler())
	s := httpapi.NewHTTP(mux, d.log)
	go func() { _ = s.Serve(httpapi.Limit(l, s, metricsConnections)) }() // until it is closed
	return s, nil
}
