package sweep

import (
	"cmp"
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

// A step is given up after this many times its expected time plus stepPatience: the machine may be
// slow or busy.
const (
	stepFactor   = 30
	stepPatience = 5 * time.Minute
)

// Sweep is a study: some experiments, and the folder of their results.
type Sweep struct {
	Experiments []Experiment
	Options     Options
	Dir         string   // folder of the results; it exists
	WorkDir     string   // parent of the rigs' folders; empty: the system's folder for temporary files
	Resume      bool     // do not repeat the steps in the journal
	Force       bool     // replace the files of an earlier study in Dir
	Command     []string // repeats the sweep, without its seed
	Progress    io.Writer
	Log         *slog.Logger

	results *result.Results
	journal *journal
	bar     *progress
	plans   []*Plan
	events  map[*result.Point][]float64
	failed  map[string]*failure // by the result of failureOf
}

// failure counts the failures of a variant.
type failure struct {
	first error
	times int
	keys  map[string]int // failures by step
}

// A step with this many failures is not tried again. A variant with this many failed steps is not
// tried again.
const patience = 2

func (f *failure) add(key string, err error) {
	if f.first == nil {
		f.first, f.keys = err, map[string]int{}
	}
	f.times++
	f.keys[key]++
}

func (f *failure) enough(key string) bool { return f.keys[key] >= patience || len(f.keys) >= patience }

// failureOf returns the count of a step's failures. A step that several figures share fails in all
// of them.
func (s *Sweep) failureOf(p *Plan, step *Step) *failure {
	of := step.Same
	if of == "" {
		of = p.Figure.Name + "/" + cmp.Or(step.Variant, step.Key)
	}
	if s.failed[of] == nil {
		s.failed[of] = &failure{}
	}
	return s.failed[of]
}

// Run makes all steps, writes the results into Dir and returns them. After an error it returns the
// results so far, or nil if nothing was measured. When Run returns, everything else that it has
// made is removed. Run ends when ctx does.
func (s *Sweep) Run(ctx context.Context) (results *result.Results, err error) {
	s.events, s.failed = make(map[*result.Point][]float64), make(map[string]*failure)
	s.results = &result.Results{Started: time.Now().UTC().Truncate(time.Second)}
	if err := s.open(); err != nil {
		return nil, err
	}
	defer s.journal.close()
	defer func() {
		if results == nil { // there is nothing to resume
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
		if ctx.Err() != nil || s.stops(err) {
			break
		}
	}
	return s.finish(ctx, failed)
}

// open reads the journal of an interrupted sweep, or makes a new journal.
func (s *Sweep) open() (err error) {
	var names []string
	for _, e := range s.Experiments {
		names = append(names, e.Name())
	}
	h := header{Figures: names, Options: s.Options, Started: s.results.Started}
	do := refuse
	switch {
	case s.Resume:
		do = resume
	case s.Force:
		do = replace
	}
	if s.journal, err = openJournal(s.Dir, h, do); err != nil {
		return err
	}
	s.Options, s.results.Started = s.journal.header.Options, s.journal.header.Started
	return nil
}

// plan gets the plans of all experiments. They check that the programs that they need are
// installed.
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

// check compares the needs of the plans with the machine's resources.
func (s *Sweep) check(ctx context.Context) (err error) {
	r, err := rig.New(rig.Options{Dir: s.WorkDir, Runtime: s.Options.Runtimes[0]})
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

// left returns the expected time of the steps that are not made yet.
func (s *Sweep) left() (seconds float64) {
	shared := make(map[string]bool)
	for _, p := range s.plans {
		for round := range p.Rounds {
			for i := range p.Steps {
				step := &p.Steps[i]
				same := fmt.Sprint(step.Same, round)
				if s.journal.made(p.Figure.Name, step.Key, round) || step.Same != "" && shared[same] || s.failureOf(p, step).enough(step.Key) {
					continue
				}
				shared[same] = true
				seconds += step.Seconds
			}
		}
	}
	return seconds
}

// todo returns the steps of a round that are not made yet, in their order.
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

// figure makes the steps of a figure, in a rig of its own. After a failed step it makes the others
// in another rig: the state of the old rig is unknown.
func (s *Sweep) figure(ctx context.Context, p *Plan) (err error) {
	var r *rig.Rig
	defer func() {
		if r != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	var failed []*failure
	for round := range p.Rounds {
		for _, step := range s.todo(p, round) {
			f := s.failureOf(p, step)
			if f.enough(step.Key) {
				continue
			}
			if r == nil {
				if r, err = s.rig(ctx, p); err != nil {
					return errors.Join(all(failed), err)
				}
			}
			s.bar.show(fmt.Sprintf("%s, round %d of %d: %s", p.Figure.Name, round+1, p.Rounds, step.Key), step.Seconds)
			err := s.step(ctx, p, step, &Env{Rig: r, Round: round, Log: s.Log, progress: s.bar.within})
			if err == nil {
				continue
			}
			if err = r.BlameDisk(err); ctx.Err() != nil || s.stops(err) {
				return errors.Join(all(failed), fmt.Errorf("%s: %w", step.Key, err))
			}
			text := fmt.Sprintf("%s failed in round %d: %s", step.Key, round+1, oneLine(err))
			if f.add(step.Key, fmt.Errorf("%s: %w", step.Key, err)); !slices.Contains(failed, f) {
				failed = append(failed, f)
				p.Figure.Notes = append(p.Figure.Notes, text)
			}
			if f.enough(step.Key) {
				text += "; it is not tried again"
			}
			s.bar.say(p.Figure.Name+": "+text, s.left())
			err, r = r.Close(), nil
			if err != nil {
				return errors.Join(all(failed), err)
			}
		}
	}
	return all(failed)
}

// rig makes a rig for a figure.
func (s *Sweep) rig(ctx context.Context, p *Plan) (*rig.Rig, error) {
	r, err := rig.New(p.Rig)
	if err != nil {
		return nil, err
	}
	if p.Prepare != nil {
		err = p.Prepare(ctx, r)
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// all joins failures.
func all(failed []*failure) error {
	var errs []error
	for _, f := range failed {
		err := f.first
		if f.times > 1 {
			err = fmt.Errorf("%w (the first of %d failures)", err, f.times)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// stops tells whether the sweep must end after an error.
func (s *Sweep) stops(err error) bool { return rig.DiskFull(err) || errors.Is(err, errJournal) }

// step makes one step and records its samples.
func (s *Sweep) step(ctx context.Context, p *Plan, step *Step, e *Env) error {
	limit := stepPatience + time.Duration(stepFactor*step.Seconds*float64(time.Second))
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	since := time.Now()
	samples, err := step.Run(limited, e)
	took := time.Since(since)
	left := e.Rig.Running()
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case limited.Err() != nil:
		err = fmt.Errorf("the step was given up after %v, %.0f s were expected: %w", limit, step.Seconds, err)
	case err == nil && len(left) > 0:
		err = fmt.Errorf("the step has left containers running: %s", strings.Join(left, ", "))
	case err == nil:
		s.bar.done(step.Seconds, took)
	}
	if err != nil && len(samples) == 0 {
		return err
	}
	return errors.Join(err, s.keep(p, step, entry{Round: e.Round, Seconds: took.Seconds(), Samples: samples}, err == nil))
}

// keep adds the samples of a step to each figure that has the step. It writes them to the journal
// if the step has given all samples. Otherwise a resumed sweep makes the step again.
func (s *Sweep) keep(p *Plan, step *Step, made entry, whole bool) error {
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
			if !whole {
				continue
			}
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

// finish makes the statistics, and records what is missing.
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
			why = append(why, oneLine(err))
		}
	}
	if len(why) > 0 {
		r.Incomplete = fmt.Sprintf("%d of %d steps were made: %s", made, all, strings.Join(why, "; "))
	}
	// A figure without measurements is left out.
	r.Figures = slices.DeleteFunc(r.Figures, func(f *result.Figure) bool { return f.Seconds == 0 })
	r.Finish()
	if len(r.Figures) == 0 {
		return nil, errors.Join(failed...)
	}
	r.Command = append(s.Command, "--seed", strconv.FormatUint(s.Options.Seed, 10))
	err := r.Save(s.Dir)
	if err == nil && len(failed) == 0 { // otherwise the journal is the only record of the steps
		err = s.journal.remove()
	}
	return r, errors.Join(append(failed, err)...)
}

// options returns the options that two sweeps must share to be comparable.
func (s *Sweep) options() map[string]string {
	o := s.Options
	all := map[string]string{
		"max": fmt.Sprint(o.Max), "quick": fmt.Sprint(o.Quick), "rounds": fmt.Sprint(o.Rounds), "files": fmt.Sprint(o.Files),
		"networks": strings.Join(o.Networks, ","), "runtimes": strings.Join(o.Runtimes, ","), "storages": strings.Join(o.Storages, ","),
	}
	maps.DeleteFunc(all, func(_, value string) bool { return value == "" || value == "0" || value == "false" })
	return all
}
