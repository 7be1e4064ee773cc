// Package result has the results of a density sweep: their schema, the statistics of repeated runs,
// and the file results.json.
//
// It owns the numbers: medians and their intervals, percentiles, fairness, the knee of a curve, and
// the sentence with the finding. It does not measure and does not draw (density/figures,
// density/report). It needs no privileges and no particular kernel. Nothing in it is safe for
// concurrent use.
package result

import (
	"maps"
	"math"
	"time"
)

// Version is the version of the schema. Files of other versions are refused, because their numbers
// may have another meaning.
const Version = 1

// Results has the results of one sweep on one machine.
type Results struct {
	Version int       `json:"version"`
	Command []string  `json:"command"` // repeats the sweep
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`
	Machine Machine   `json:"machine"`
	// Options that two sweeps must share for their figures to be comparable.
	Options map[string]string `json:"options"`
	// Limits has the result of the check before the run, one line for each limit.
	Limits []string `json:"limits"`
	// Incomplete has the reason why figures or points are missing. It is empty after a whole sweep.
	Incomplete string    `json:"incomplete,omitempty"`
	Figures    []*Figure `json:"figures"`
}

// Machine describes the machine of the sweep.
type Machine struct {
	CPU               string `json:"cpu"`
	Cores             int    `json:"cores"` // available to the sweep
	MemoryBytes       int64  `json:"memory_bytes"`
	Kernel            string `json:"kernel"`
	Distribution      string `json:"distribution"`
	Cgroups           string `json:"cgroups"` // v1, hybrid or v2
	Runtime           string `json:"runtime"` // with its version
	CongestionControl string `json:"congestion_control"`
	FileSystem        string `json:"file_system,omitempty"`    // of the containers' storage
	Virtualization    string `json:"virtualization,omitempty"` // empty: none detected
	// Load is the load average over the minute before the run.
	Load float64 `json:"load_1min"`
	// Tools has the versions of the programs that made the load: fio, the web server.
	Tools map[string]string `json:"tools,omitempty"`
}

// Figure is one experiment.
type Figure struct {
	Name    string    `json:"name"` // as given to --figure
	Title   string    `json:"title"`
	Study   string    `json:"study"`   // the study's finding in words; empty if the study has none
	Finding string    `json:"finding"` // our finding, made by Finish, one line for each sentence
	X       Axis      `json:"x"`
	Y       Axis      `json:"y"`
	Series  []*Series `json:"series"`
	Notes   []string  `json:"notes"` // conditions: cache state, scale, tools
	Seconds float64   `json:"seconds"`

	// Conclude, if set, makes Finding instead of the general sentence. Finish calls it after all
	// statistics are made.
	Conclude func(*Figure) string `json:"-"`
}

// Axis is an axis of a figure.
type Axis struct {
	Label string `json:"label"`
	Unit  string `json:"unit"`
	Log   bool   `json:"log"`
	// Better is "higher" or "lower" if such values are an improvement.
	Better string `json:"better,omitempty"`
}

// The values of Axis.Better.
const (
	Higher = "higher"
	Lower  = "lower"
)

// Series is one line of a figure, for example for one network or one storage.
type Series struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels,omitempty"`
	Points []*Point          `json:"points"`
	Knee   float64           `json:"knee,omitempty"` // an X; 0: no knee
	// Better overrides the Better of the figure's Y axis.
	Better string `json:"better,omitempty"`
}

// Point is one value of the X axis, measured in repeated runs.
type Point struct {
	X        float64   `json:"x"`
	Category string    `json:"category,omitempty"` // instead of X
	Samples  []float64 `json:"samples"`            // one for each run
	Median   float64   `json:"median"`
	Low      float64   `json:"low"` // the interval of the median, see Interval
	High     float64   `json:"high"`
	// Wide tells that the interval is too wide for the median to mean anything.
	Wide bool `json:"wide"`
	// Failed has the reason why runs gave no sample.
	Failed string `json:"failed,omitempty"`
	// PerContainer has the values of the single containers, for each run.
	PerContainer [][]float64 `json:"per_container,omitempty"`
	// Extra has other measures of the same runs: jain, psi_some10, nr_throttled, softirq_share,
	// p50, p90, p95, p99, p999.
	Extra map[string]float64 `json:"extra,omitempty"`
	// ExtraSamples has the values of each run. Extra has their medians.
	ExtraSamples map[string][]float64 `json:"extra_samples,omitempty"`
}

// Add adds the value of one run. A value that is NaN or infinite is no sample, and sets Failed.
func (p *Point) Add(sample float64) {
	if math.IsNaN(sample) || math.IsInf(sample, 0) {
		p.Failed = "a run gave no number"
		return
	}
	p.Samples = append(p.Samples, sample)
}

// AddEach adds the containers' own values of one run. Finish computes their fairness.
func (p *Point) AddEach(values []float64) {
	p.PerContainer = append(p.PerContainer, append([]float64(nil), values...))
}

// AddExtra adds another measure of one run.
func (p *Point) AddExtra(name string, value float64) {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		return
	}
	if p.ExtraSamples == nil {
		p.ExtraSamples = make(map[string][]float64)
	}
	p.ExtraSamples[name] = append(p.ExtraSamples[name], value)
}

// Figure returns the figure of a name, or nil.
func (r *Results) Figure(name string) *Figure {
	for _, f := range r.Figures {
		if f.Name == name {
			return f
		}
	}
	return nil
}

// Line returns the series with a name and labels, and makes it if there is none.
func (f *Figure) Line(name string, labels map[string]string) *Series {
	for _, s := range f.Series {
		if s.Name == name && maps.Equal(s.Labels, labels) {
			return s
		}
	}
	s := &Series{Name: name, Labels: maps.Clone(labels)}
	f.Series = append(f.Series, s)
	return s
}

// At returns the point at x, and makes it if there is none.
func (s *Series) At(x float64) *Point {
	return s.point(x, "")
}

// In returns the point of a category, and makes it if there is none.
func (s *Series) In(category string) *Point {
	return s.point(0, category)
}

func (s *Series) point(x float64, category string) *Point {
	for _, p := range s.Points {
		if p.X == x && p.Category == category {
			return p
		}
	}
	p := &Point{X: x, Category: category}
	s.Points = append(s.Points, p)
	return p
}
