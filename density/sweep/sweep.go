// Package sweep runs the experiments of a density study: what is measured is repeated
// in rounds, in each of which all variants and sizes take turns in a drawn order, so
// that what changes slowly on the machine does not pass for a difference.
//
// It owns that order, the journal by which an interrupted sweep is continued, and the
// progress that a terminal shows. What is measured is an Experiment's; what containers
// are, density/rig's; statistics and reports are density/result's and density/report's.
// It needs what density/rig needs.
//
// Theory of operation: a sweep is first planned, and its plans are checked against what
// the machine has, before anything is measured. Each figure then has a rig of its own.
// A step that was made is appended to the journal in the folder of the results, and is
// what a sweep consists of: an interrupted one has all steps but the last, and one that
// is resumed makes those that the journal has not. It is removed when the results of a
// whole sweep are written. Orders are drawn from the seed, which the journal and the
// command in the results have, the round and the figure.
package sweep

import (
	"context"
	"log/slog"

	"github.com/tsugiki/tsugiki/density/result"
	"github.com/tsugiki/tsugiki/density/rig"
)

// Options are those of a sweep that experiments look at.
type Options struct {
	Max      int      `json:"max"`      // containers at most; 0: as many as the study had in that figure
	Quick    bool     `json:"quick"`    // little of everything, to see that it works
	Rounds   int      `json:"rounds"`   // how often everything is measured; 0: the experiment's choice
	Networks []string `json:"networks"` // to compare; empty: the experiment's choice
	Runtimes []string `json:"runtimes"` // to compare; never empty
	Storages []string `json:"storages"` // to compare; empty: the experiment's choice
	Files    int      `json:"files"`    // of file I/O, for each container; 0: the experiment's choice
	Seed     uint64   `json:"seed"`
}

// Experiment is one figure.
type Experiment interface {
	// Name is what --figure calls it: lower-case letters and "-".
	Name() string
	// Plan says what is to be measured. It checks first that what it needs is
	// installed (rig.ErrMissing). An error names the experiment.
	Plan(o *Options) (*Plan, error)
}

// Plan is what an experiment is to measure.
type Plan struct {
	// Figure has everything but points: they are added to the series that samples
	// name. Series that are there already stay in that order.
	Figure *result.Figure
	Rounds int // how often each step is made; that of Options goes over it
	Rig    rig.Options
	// What is checked for before anything is measured, see rig.CheckRoom.
	Containers       int
	Network, Storage string // those that take most
	Room             rig.Room
	// Tools are the versions of what makes the load.
	Tools map[string]string
	// Prepare installs what containers need into a rig that was just made. It may be
	// nil.
	Prepare func(ctx context.Context, r *rig.Rig) error
	Steps   []Step // of one round
}

// Step is what is measured in one go. It is made once per round and leaves nothing
// running; what it has measured is kept if the sweep is interrupted after it.
type Step struct {
	Key     string  // unique in the plan, the same in each run with the same options
	Seconds float64 // how long it is expected to take, to guess the time left
	// Same, if it is not empty, names what other figures of the same sweep measure
	// too: such steps are made once in a round, for all figures that have one.
	Same string
	// Variant is what fails together, if it fails: when several of its steps have, those
	// that are left are not tried. A step with Same is a variant of its own.
	Variant string
	// Run returns what it has measured, with an error also.
	Run func(ctx context.Context, e *Env) ([]Sample, error)
}

// Env is where a step is made.
type Env struct {
	Rig   *rig.Rig
	Round int // counted from 0
	Log   *slog.Logger

	progress func(what string, share float64)
}

// Say shows what a long step does now, and which part of its time is over; 0 if it does
// not know.
func (e *Env) Say(what string, share float64) {
	if e.progress != nil {
		e.progress(what, share)
	}
}

// Sample is one measured value of one point, and what was measured beside it.
type Sample struct {
	Figure   string             `json:"figure,omitempty"` // whose it is, of a step with Same; empty: that of the step
	Series   string             `json:"series"`
	Labels   map[string]string  `json:"labels,omitempty"` // of the series
	X        float64            `json:"x"`
	Category string             `json:"category,omitempty"` // in the place of X
	Value    float64            `json:"value"`
	Each     []float64          `json:"each,omitempty"`   // the containers' own values, for their fairness
	Events   []float64          `json:"events,omitempty"` // single latencies, for percentiles over all rounds
	Extra    map[string]float64 `json:"extra,omitempty"`  // the medians of the rounds are kept
}

// addTo adds the sample to its point.
func (s *Sample) addTo(f *result.Figure) *result.Point {
	line := f.Line(s.Series, s.Labels)
	var p *result.Point
	if s.Category != "" {
		p = line.In(s.Category)
	} else {
		p = line.At(s.X)
	}
	p.Add(s.Value)
	if len(s.Each) > 0 {
		p.AddEach(s.Each)
	}
	for name, value := range s.Extra {
		p.AddExtra(name, value)
	}
	return p
}
