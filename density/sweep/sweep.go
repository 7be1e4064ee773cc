// Package sweep runs the experiments of a density study: what is measured is repeated
// in rounds, in each of which all variants and sizes take turns in a drawn order, so
// that what changes slowly on the machine does not pass for a difference.
//
// It owns that order, the journal by which an interrupted sweep is continued, and the
// progress that a terminal shows. What is measured is an Experiment's; what containers
// are, density/rig's; statistics and reports are density/result's and density/report's.
// It needs what density/rig needs.
package sweep

import (
	"context"
	"io"
	"log/slog"

	"github.com/tsugiki/tsugiki/density/result"
	"github.com/tsugiki/tsugiki/density/rig"
)

// Options are those of a sweep that experiments look at.
type Options struct {
	Max      int      // containers at most; 0: as many as the study had in that figure
	Quick    bool     // little of everything, to see that it works
	Rounds   int      // how often everything is measured; 0: the experiment's choice
	Networks []string // to compare; empty: the experiment's choice
	Runtimes []string // to compare; never empty
	Storages []string // to compare; empty: the experiment's choice
	Files    int      // of file I/O, per container; 0: the experiment's choice
	Seed     uint64
}

// Experiment is one figure.
type Experiment interface {
	// Name is what --figure calls it: lower-case letters and "-".
	Name() string
	// Plan says what is to be measured. It checks first that what it needs is
	// installed (rig.ErrMissing).
	Plan(o *Options) (*Plan, error)
}

// Plan is what an experiment is to measure.
type Plan struct {
	// Figure has everything but points: they are added to the series that samples
	// name. Series that are there already stay in that order.
	Figure *result.Figure
	Rounds int // how often each step is made
	Rig    rig.Options
	// Room is checked before anything is started; see rig.CheckRoom.
	Containers       int
	Network, Storage string // that take most
	Room             rig.Room
	// Prepare installs what containers need into a rig that was just made.
	Prepare func(ctx context.Context, r *rig.Rig) error
	Steps   []Step // of one round
}

// Step is what is measured in one go. It is made once per round, leaves nothing
// running, and what it has measured is kept if the sweep is interrupted after it.
type Step struct {
	Key     string  // unique in the plan, the same in each run with the same options
	Seconds float64 // how long it is expected to take, to guess the time left
	Run     func(ctx context.Context, e *Env) ([]Sample, error)
}

// Env is where a step is made.
type Env struct {
	Rig   *rig.Rig
	Round int
	Log   *slog.Logger
}

// Sample is one measured value, which belongs to one point.
type Sample struct {
	Series   string             `json:"series"`
	Labels   map[string]string  `json:"labels,omitempty"` // of the series
	X        float64            `json:"x"`
	Category string             `json:"category,omitempty"` // in the place of X
	Value    float64            `json:"value"`
	Extra    map[string]float64 `json:"extra,omitempty"` // the medians of the rounds are kept
}

// Sweep is a study: some experiments, and where their results go.
type Sweep struct {
	Experiments []Experiment
	Options     Options
	Dir         string // of the results
	WorkDir     string // for the rigs' folders; empty: the system's for temporary files
	Resume      bool
	Progress    io.Writer
	Log         *slog.Logger
}

// Run makes all steps and returns the results, also with an error: those that there
// are then.
func (s *Sweep) Run(ctx context.Context) (*result.Results, error) { return nil, nil }
