package sweep

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tsugiki/tsugiki/density/result"
	"github.com/tsugiki/tsugiki/density/rig"
)

// A step that takes this many times as long as was expected, and stepPatience more, is
// taken for hung: the machine may be slow, or busy.
const (
	stepFactor   = 30
	stepPatience = 5 * time.Minute
)

// Sweep is a study: some experiments, and where their results go.
type Sweep struct {
	Experiments []Experiment
	Options     Options
	Dir         string   // of the results; it exists
	WorkDir     string   // for the rigs' folders; empty: the system's for temporary files
	Resume      bool     // what the journal in Dir has is not measured again
	Command     []string // runs it again, but for the seed
	Progress    io.Writer
	Log         *slog.Logger

	results *result.Results
	journal *journal
	bar     *progress
	plans   []*Plan
	events  map[*result.Point][]float64
}

// Run makes all steps, writes the results into Dir and returns them, with an error also:
// those that there are then, or nil if nothing was measured. Everything else that it has
// made is removed when it returns. It ends when ctx does.
func (s *Sweep) Run(ctx context.Context) (_ *result.Results, err error) {
	s.events = make(map[*result.Point][]float64)
	s.results = &result.Results{Started: time.Now().UTC().Truncate(time.Second)}
	if err := s.open(); err != nil {
		return nil, err
	}
	defer s.journal.close()
	defer func() {
		if s.journal.count() == 0 { // there is nothing to resume
			err = errors.Join(err, s.journal.remove())
		}
	}()
	err = s.plan()
	if err == nil {
		err = s.check(ctx)
	}
	if err != nil {
		return nil, err
	}
	s.bar = newProgress(s.Progress, s.left())
	defer s.bar.close()
	var failed []error
	for _, p := range s.plans {
		err := s.figure(ctx, p)
		if err == nil {
			continue
		}
		failed = append(failed, fmt.Errorf("%s: %w", p.Figure.Name, err))
		if ctx.Err() != nil || rig.DiskFull(err) {
			break
		}
	}
	return s.finish(ctx, failed)
}

// open reads the journal of an interrupted sweep, or begins one.
func (s *Sweep) open() (err error) {
	var names []string
	for _, e := range s.Experiments {
		names = append(names, e.Name())
	}
	h := header{Figures: names, Options: s.Options, Started: s.results.Started}
	if s.journal, err = openJournal(s.Dir, h, s.Resume); err != nil {
		return err
	}
	s.Options, s.results.Started = s.journal.header.Options, s.journal.header.Started
	return nil
}

// plan has all experiments say what they want to measure, and what is missing.
func (s *Sweep) plan() error {
	var missing []error
	for _, e := range s.Experiments {
		p, err := e.Plan(&s.Options)
		if err != nil {
			missing = append(missing, err)
			continue
		}
		if s.Options.Rounds > 0 {
			p.Rounds = s.Options.Rounds
		}
		p.Rig.Dir = s.WorkDir
		if p.Rig.Runtime == "" {
			p.Rig.Runtime = s.Options.Runtimes[0]
		}
		s.plans = append(s.plans, p)
		s.results.Figures = append(s.results.Figures, p.Figure)
		for _, made := range s.journal.steps[p.Figure.Name] {
			s.add(p, made)
		}
	}
	return errors.Join(missing...)
}

// check compares what the plans need with what the machine has.
func (s *Sweep) check(ctx context.Context) (err error) {
	r, err := rig.New(rig.Options{Dir: s.WorkDir, Runtime: s.Options.Runtimes[0]}, s.Log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	for _, p := range s.plans {
		said, err := r.CheckRoom(p.Containers, p.Network, p.Storage, p.Room)
		if err != nil {
			return fmt.Errorf("%s: %w", p.Figure.Name, err)
		}
		s.results.Limits = append(s.results.Limits, p.Figure.Name+": "+said)
	}
	if s.results.Machine, err = describe(ctx, r, s.Options.Runtimes); err != nil {
		return fmt.Errorf("describe the machine: %w", err)
	}
	for _, p := range s.plans {
		maps.Copy(s.results.Machine.Tools, p.Tools)
	}
	return nil
}

// left is how long the steps are expected to take that have not been made.
func (s *Sweep) left() (seconds float64) {
	shared := make(map[string]bool)
	for _, p := range s.plans {
		for round := range p.Rounds {
			for i := range p.Steps {
				step := &p.Steps[i]
				same := fmt.Sprint(step.Same, round)
				if s.journal.made(p.Figure.Name, step.Key, round) || step.Same != "" && shared[same] {
					continue
				}
				shared[same] = true
				seconds += step.Seconds
			}
		}
	}
	return seconds
}

// todo are the steps of a round that have not been made, in their order.
func (s *Sweep) todo(p *Plan, round int) (steps []*Step) {
	h := fnv.New64a()
	io.WriteString(h, p.Figure.Name) // never fails
	random := rand.New(rand.NewPCG(s.Options.Seed, h.Sum64()+uint64(round)))
	for _, i := range random.Perm(len(p.Steps)) {
		if step := &p.Steps[i]; !s.journal.made(p.Figure.Name, step.Key, round) {
			steps = append(steps, step)
		}
	}
	return steps
}

// figure makes the steps of a figure, in a rig of its own.
func (s *Sweep) figure(ctx context.Context, p *Plan) (err error) {
	rounds := make([][]*Step, p.Rounds)
	todo := 0
	for round := range rounds {
		rounds[round] = s.todo(p, round)
		todo += len(rounds[round])
	}
	if todo == 0 {
		return nil
	}
	r, err := rig.New(p.Rig, s.Log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if p.Prepare != nil {
		if err := p.Prepare(ctx, r); err != nil {
			return err
		}
	}
	for round, steps := range rounds {
		for _, step := range steps {
			s.bar.show(fmt.Sprintf("%s, round %d of %d: %s", p.Figure.Name, round+1, p.Rounds, step.Key), step.Seconds)
			if err := s.step(ctx, p, step, &Env{Rig: r, Round: round, Log: s.Log}); err != nil {
				return fmt.Errorf("%s: %w", step.Key, err)
			}
		}
	}
	return nil
}

// step makes one step and writes down what it has measured.
func (s *Sweep) step(ctx context.Context, p *Plan, step *Step, e *Env) error {
	limit := stepPatience + time.Duration(stepFactor*step.Seconds*float64(time.Second))
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	since := time.Now()
	samples, err := step.Run(limited, e)
	took := time.Since(since)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case limited.Err() != nil:
		return fmt.Errorf("it was given up after %v, %.0f s were expected: %w", limit, step.Seconds, err)
	case err != nil:
		return err
	}
	if left := e.Rig.Running(); len(left) > 0 {
		return fmt.Errorf("it has left containers running: %s", strings.Join(left, ", "))
	}
	s.bar.done(step.Seconds, took)
	return s.keep(p, step, entry{Round: e.Round, Seconds: took.Seconds(), Samples: samples})
}

// keep writes down what a step has measured, for each figure that has the step.
func (s *Sweep) keep(p *Plan, step *Step, made entry) error {
	samples := made.Samples
	for _, other := range s.plans {
		for i := range other.Steps {
			same := &other.Steps[i]
			if same != step && (step.Same == "" || same.Same != step.Same) ||
				made.Round >= other.Rounds || s.journal.made(other.Figure.Name, same.Key, made.Round) {
				continue
			}
			made.Figure, made.Key = other.Figure.Name, same.Key
			made.Samples = slices.DeleteFunc(slices.Clone(samples), func(m Sample) bool {
				return m.Figure != other.Figure.Name && (m.Figure != "" || other != p)
			})
			s.add(other, made)
			if err := s.journal.append(made); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Sweep) add(p *Plan, made entry) {
	p.Figure.Seconds += made.Seconds
	for i := range made.Samples {
		point := made.Samples[i].addTo(p.Figure)
		s.events[point] = append(s.events[point], made.Samples[i].Events...)
	}
}

// finish makes the statistics, and says what is missing.
func (s *Sweep) finish(ctx context.Context, failed []error) (*result.Results, error) {
	for point, events := range s.events {
		if len(events) > 0 {
			point.SetPercentiles(events)
		}
	}
	r := s.results
	r.Ended = time.Now().UTC().Truncate(time.Second)
	r.Options = s.options()
	made, all := s.journal.count(), 0
	for _, p := range s.plans {
		all += p.Rounds * len(p.Steps)
	}
	var why []string
	if ctx.Err() != nil {
		why, failed = []string{"interrupted"}, []error{ctx.Err()}
	} else {
		for _, err := range failed {
			why = append(why, strings.ReplaceAll(err.Error(), "\n", "; "))
		}
	}
	if len(why) > 0 {
		r.Incomplete = fmt.Sprintf("%d of %d steps were made: %s", made, all, strings.Join(why, "; "))
	}
	// A figure of which nothing was measured is none.
	r.Figures = slices.DeleteFunc(r.Figures, func(f *result.Figure) bool { return f.Seconds == 0 })
	r.Finish()
	if made == 0 {
		return nil, errors.Join(failed...)
	}
	r.Command = append(s.Command, "--seed", strconv.FormatUint(s.Options.Seed, 10))
	err := r.Save(s.Dir)
	if err == nil && len(failed) == 0 { // else there would be nothing that has it
		err = s.journal.remove()
	}
	return r, errors.Join(append(failed, err)...)
}

// options are what two sweeps have to share to be compared.
func (s *Sweep) options() map[string]string {
	o := s.Options
	all := map[string]string{
		"max": fmt.Sprint(o.Max), "quick": fmt.Sprint(o.Quick), "rounds": fmt.Sprint(o.Rounds), "files": fmt.Sprint(o.Files),
		"networks": strings.Join(o.Networks, ","), "runtimes": strings.Join(o.Runtimes, ","), "storages": strings.Join(o.Storages, ","),
	}
	maps.DeleteFunc(all, func(_, value string) bool { return value == "" || value == "0" || value == "false" })
	return all
}
