package kubetest

import (
	"fmt"
	"net/http"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/client-go/rest"
)

// Metrics are those of the API server at one moment, by their names.
type Metrics map[string]*dto.MetricFamily

// Metrics asks the API server for its metrics.
func (a *APIServer) Metrics() (Metrics, error) {
	c, err := rest.HTTPClientFor(a.Config("admin"))
	if err != nil {
		return nil, err
	}
	defer c.CloseIdleConnections()
	r, err := c.Get(a.url() + "/metrics")
	if err != nil {
		return nil, fmt.Errorf("metrics of the API server: %w", err)
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("metrics of the API server: %s", r.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	m, err := parser.TextToMetricFamilies(r.Body)
	if err != nil {
		return nil, fmt.Errorf("metrics of the API server: %w", err)
	}
	return m, nil
}

// Each calls a function with the labels and the value of all series of a metric. The value of a
// histogram is its number of observations, and the sum is theirs; the sum of others is 0.
func (m Metrics) Each(name string, do func(labels map[string]string, value, sum float64)) {
	family, is := m[name]
	if !is {
		return
	}
	for _, s := range family.Metric {
		labels := map[string]string{}
		for _, l := range s.Label {
			labels[l.GetName()] = l.GetValue()
		}
		switch {
		case s.Histogram != nil:
			do(labels, float64(s.Histogram.GetSampleCount()), s.Histogram.GetSampleSum())
		case s.Counter != nil:
			do(labels, s.Counter.GetValue(), 0)
		case s.Gauge != nil:
			do(labels, s.Gauge.GetValue(), 0)
		}
	}
}

// Lists is how many lists of a resource the API server has answered: requests for a list, and watches
// that began with one.
func (m Metrics) Lists(resource string) (lists float64) {
	m.Each("apiserver_request_total", func(labels map[string]string, value, _ float64) {
		if labels["resource"] == resource && labels["verb"] == "LIST" {
			lists += value
		}
	})
	m.Each("apiserver_watch_list_duration_seconds", func(labels map[string]string, value, _ float64) {
		if labels["resource"] == resource {
			lists += value
		}
	})
	return lists
}
