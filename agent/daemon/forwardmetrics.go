package daemon

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tsugiki/tsugiki/forward"
)

// Metrics of the pods that tsugiki-cni has attached in the agent's network namespace. The agent has
// no part in them: it reads their table at each scrape.

func podDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("tsugiki_forward_"+name, help, append([]string{"network", "pod", "interface"}, labels...), nil)
}

var (
	descPods        = prometheus.NewDesc("tsugiki_forward_pods", "Pods that tsugiki-cni has attached.", []string{"state"}, nil)
	descPairs       = prometheus.NewDesc("tsugiki_forward_pairs", "Pairs of pods with a verdict.", []string{"verdict"}, nil)
	descPackets     = podDesc("packets_total", "Packets that a pod has sent.", "outcome", "reason")
	descDirectBytes = podDesc("direct_bytes_total", "Bytes of the packets that went to another pod directly.")
)

// collectPods has nothing where no pod was ever attached.
func (d *Daemon) collectPods(out chan<- prometheus.Metric) {
	t, err := forward.OpenExisting()
	if errors.Is(err, forward.ErrNoTable) {
		return
	}
	if err != nil {
		d.log.Warn("no metrics of pods of tsugiki-cni", "err", err)
		return
	}
	defer t.Close()
	entries, err := t.Entries()
	pairs, pairsErr := t.Pairs()
	if err := errors.Join(err, pairsErr); err != nil {
		d.log.Warn("no metrics of pods of tsugiki-cni", "err", err)
		return
	}
	states := map[string]int{"on": 0, "off": 0, "fault": 0}
	for _, e := range entries {
		states[podState(e)]++
		collectPod(out, e)
	}
	verdicts := map[forward.Verdict]int{forward.Direct: 0, forward.Slow: 0}
	for _, p := range pairs {
		verdicts[p.Verdict]++
	}
	for state, n := range states {
		out <- prometheus.MustNewConstMetric(descPods, prometheus.GaugeValue, float64(n), state)
	}
	for verdict, n := range verdicts {
		out <- prometheus.MustNewConstMetric(descPairs, prometheus.GaugeValue, float64(n), string(verdict))
	}
}

// podState is the state of direct forward for a pod.
func podState(e forward.Entry) string {
	switch {
	case e.Fault != "":
		return "fault"
	case e.Direct:
		return "on"
	}
	return "off"
}

// collectPod has the reasons that occurred. A link without an owner's name is not the plugin's.
func collectPod(out chan<- prometheus.Metric, e forward.Entry) {
	if e.Owner == (forward.Owner{}) {
		return
	}
	labels := []string{e.Owner.Network, e.Owner.Container, e.Owner.Interface}
	for _, r := range forward.Reasons {
		if n := e.Packets[r.Name]; n > 0 {
			of := append(labels[:len(labels):len(labels)], string(r.Outcome()), r.Name)
			out <- prometheus.MustNewConstMetric(descPackets, prometheus.CounterValue, float64(n), of...)
		}
	}
	out <- prometheus.MustNewConstMetric(descDirectBytes, prometheus.CounterValue, float64(e.DirectBytes), labels...)
}
