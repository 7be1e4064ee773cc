// Package result is what a density sweep measured: its schema, the statistics
// of repeated runs, and results.json, in which it lasts.
//
// It owns the numbers: medians and their intervals, percentiles, fairness, the
// knee of a curve, and the sentence that says what was found. It does not
// measure and does not draw (density/figures, density/report). It needs no
// privileges and no kernel in particular. Nothing in it is safe for concurrent
// use.
package result

import (
	"maps"
	"math"
	"time"
)

// Version of the schema. A file of another version is refused: its numbers may
// mean something else.
const Version = 1

// Results is one sweep on one machine.
type Results struct {
	Version int       `json:"version"`
	Command []string  `json:"command"` // runs it again
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`
	Machine Machine   `json:"machine"`
	// Options that two sweeps must share for their figures to be comparable.
	Options map[string]string `json:"options"`
	// Limits are what was checked before the run, a line each.
	Limits []string `json:"limits"`
	// Incomplete says why figures or points are missing; empty after a whole
	// sweep.
	Incomplete string    `json:"incomplete,omitempty"`
	Figures    []*Figure `json:"figures"`
}

// Machine is where the figures come from.
type Machine struct {
	CPU               string `json:"cpu"`
	Cores             int    `json:"cores"` // that the sweep could use
	MemoryBytes       int64  `json:"memory_bytes"`
	Kernel            string `json:"kernel"`
	Distribution      string `json:"distribution"`
	Cgroups           string `json:"cgroups"` // v1, hybrid or v2
	Runtime           string `json:"runtime"` // with its version
	CongestionControl string `json:"congestion_control"`
	FileSystem        string `json:"file_system,omitempty"`    // below the containers
	Virtualization    string `json:"virtualization,omitempty"` // empty: none seen
	// Load is the load average of the minute before the run.
	Load float64 `json:"load_1min"`
	// Tools are the versions of what made the load: fio, the web server.
	Tools map[string]string `json:"tools,omitempty"`
}

// Figure is one experiment.
type Figure struct {
	Name    string    `json:"name"` // as given to --figure
	Title   string    `json:"title"`
	Study   string    `json:"study"`   // the study's finding in words; empty beyond it
	Finding string    `json:"finding"` // ours, made by Finish, a line for each sentence
	X       Axis      `json:"x"`
	Y       Axis      `json:"y"`
	Series  []*Series `json:"series"`
	Notes   []string  `json:"notes"` // conditions: cache state, scale, tools
	Seconds float64   `json:"seconds"`

	// Conclude, if set, words Finding instead of the general sentence. It is
	// called by Finish when all statistics are there.
	Conclude func(*Figure) string `json:"-"`
}

// Axis of a figure.
type Axis struct {
	Label string `json:"label"`
	Unit  string `json:"unit"`
	Log   bool   `json:"log"`
	// Better is "higher" or "lower" where more or less of it is an improvement.
	Better string `json:"better,omitempty"`
}

// Values of Axis.Better.
const (
	Higher = "higher"
	Lower  = "lower"
)

// Series is one line of a figure: one network, one storage driver, totals.
type Series struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels,omitempty"`
	Points []*Point          `json:"points"`
	Knee   float64           `json:"knee,omitempty"` // an X; 0: none was found
	// Better overrides the figure's Y axis.
	Better string `json:"better,omitempty"`
}

// Point is one place on the X axis, measured in repeated runs.
type Point struct {
	X        float64   `json:"x"`
	Category string    `json:"category,omitempty"` // instead of X
	Samples  []float64 `json:"samples"`            // one for each run
	Median   float64   `json:"median"`
	Low      float64   `json:"low"` // of the interval of the median, see Interval
	High     float64   `json:"high"`
	// Wide: the interval is too wide for the median to mean anything.
	Wide bool `json:"wide"`
	// Failed says why runs gave no sample.
	Failed string `json:"failed,omitempty"`
	// PerContainer are the values of the single containers, for each run.
	PerContainer [][]float64 `json:"per_container,omitempty"`
	// Extra measures of the same runs: jain, psi_some10, nr_throttled,
	// softirq_share, p50, p90, p95, p99, p999.
	Extra map[string]float64 `json:"extra,omitempty"`
	// ExtraSamples are those of each run; Extra has their medians.
	ExtraSamples map[string][]float64 `json:"extra_samples,omitempty"`
}

// Add takes the value of one run. What is not a number is no sample.
func (p *Point) Add(sample float64) {
	if math.IsNaN(sample) || math.IsInf(sample, 0) {
		p.Failed = "a run gave no number"
		return
	}
	p.Samples = append(p.Samples, sample)
}

// AddEach takes the containers' own values of one run, from which Finish has
// their fairness.
func (p *Point) AddEach(values []float64) {
	p.PerContainer = append(p.PerContainer, append([]float64(nil), values...))
}

// AddExtra takes another measure of one run.
func (p *Point) AddExtra(name string, value float64) {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		return
	}
	if p.ExtraSamples == nil {
		p.ExtraSamples = make(map[string][]float64)
	}
	p.ExtraSamples[name] = append(p.ExtraSamples[name], value)
}

// Figure finds a figure by name; nil if there is none.
func (r *Results) Figure(name string) *Figure {
	for _, f := range r.Figures {
		if f.Name == name {
			return f
		}
	}
	return nil
}

// Line finds the series of that name and these labels, or makes it.
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

// At finds the point at x, or makes it.
func (s *Series) At(x float64) *Point {
	return s.point(x, "")
}

// In finds the point of a category, or makes it.
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
