// Package sweep runs the experiments of a density study. It repeats the measurements in rounds. In
// each round all variants and sizes take turns in a random order. So a slow change of the machine
// does not look like a difference between variants.
//
// It owns that order, the journal by which an interrupted sweep is continued, and the progress
// display. An Experiment decides what to measure. density/rig makes containers, density/result the
// statistics, and density/report the reports. The package needs the same privileges and kernel as
// density/rig.
//
// Theory of operation: a sweep is planned first, and its plans are compared with the machine's
// resources before anything is measured. Each figure then has a rig of its own. Each finished step
// is appended to the journal in the folder of the results. So an interrupted sweep loses only its
// last step, and a resumed sweep makes the steps that the journal lacks. The journal is removed
// when the results of a whole sweep are written. The order of the steps is drawn from the seed, the
// round and the figure. The journal and the command in the results contain the seed.
package sweep

import (
	"context"
	"log/slog"

	"github.com/tsugiki/tsugiki/density/result"
	"github.com/tsugiki/tsugiki/density/rig"
)

// Options has the options of a sweep that experiments use.
type Options struct {
	Max      int      `json:"max"`      // containers at most; 0: as many as the study had in that figure
	Quick    bool     `json:"quick"`    // few and short steps, to see that the sweep works
	Rounds   int      `json:"rounds"`   // number of rounds; 0: the experiment's choice
	Networks []string `json:"networks"` // to compare; empty: the experiment's choice
	Runtimes []string `json:"runtimes"` // to compare; never empty
	Storages []string `json:"storages"` // to compare; empty: the experiment's choice
	Files    int      `json:"files"`    // for each container in file I/O; 0: the experiment's choice
	Seed     uint64   `json:"seed"`
}

// Experiment is one figure.
type Experiment interface {
	// Name is the experiment's name in --figure: lower-case letters and "-".
	Name() string
	// Plan returns what to measure. It first checks that the programs that it needs are installed
	// (rig.ErrMissing). An error names the experiment.
	Plan(o *Options) (*Plan, error)
}

// Plan describes the measurements of an experiment.
type Plan struct {
	// Figure has everything except points: the samples are added to the series that they name.
	// Existing series keep their order.
	Figure *result.Figure
	Rounds int // how often each step is made; Options.Rounds overrides it
	Rig    rig.Options
	// The need that is checked before anything is measured; see rig.CheckRoom.
	Containers       int
	Network, Storage string // the network and storage that need the most
	Room             rig.Room
	// Tools has the versions of the programs that make the load.
	Tools map[string]string
	// Prepare installs the containers' programs into a new rig. It may be nil.
	Prepare func(ctx context.Context, r *rig.Rig) error
	Steps   []Step // of one round
}

// Step is one measurement. It is made once per round and leaves nothing running. Its samples are
// kept if the sweep is interrupted later.
type Step struct {
	Key     string  // unique in the plan, and the same in each run with the same options
	Seconds float64 // expected duration, to estimate the remaining time
	// Same, if not empty, names a measurement that several figures of the sweep need. Steps with
	// the same name are made once in a round, for all these figures.
	Same string
	// Variant names steps that fail together: after several of them have failed, the others are not
	// tried. A step with Same is a variant of its own.
	Variant string
	// Run makes the step and returns its samples. With an error it also returns the samples so far.
	Run func(ctx context.Context, e *Env) ([]Sample, error)
}

// Env is the environment of a step.
type Env struct {
	Rig   *rig.Rig
	Round int // counted from 0
	Log   *slog.Logger

	progress func(what string, share float64)
}

// Say shows the present activity of a long step, and the done part of its time; 0 if unknown.
func (e *Env) Say(what string, share float64) {
	if e.progress != nil {
		e.progress(what, share)
	}
}

// Sample is one measured value of one point, with other measurements made at the same time.
type Sample struct {
	Figure   string             `json:"figure,omitempty"` // the figure that it belongs to, in a step with Same; empty: the step's
	Series   string             `json:"series"`
	Labels   map[string]string  `json:"labels,omitempty"` // of the series
	X        float64            `json:"x"`
	Category string             `json:"category,omitempty"` // instead of X
	Value    float64            `json:"value"`
	Each     []float64          `json:"each,omitempty"`   // the value of each container, for their fairness
	Events   []float64          `json:"events,omitempty"` // single latencies, for percentiles over all rounds
	Extra    map[string]float64 `json:"extra,omitempty"`  // the results have the medians of all rounds
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
