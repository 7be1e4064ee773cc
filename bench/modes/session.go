package modes

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/tsugiki/tsugiki/bench/measure"
)

// Load is something that a session measures in every mode.
type Load struct {
	Name string
	// Pin says where it runs when the session's pinning is Automatic.
	Pin Pinning
	// Start starts servers, once; nil where there are none.
	Start func(ctx context.Context) error
	// Run measures once. The test and the CPUs of a metric are filled in.
	Run func(ctx context.Context, m Mode, add func(measure.Metric, float64)) error
	// Once, if not nil, takes the place of Run: it measures in no mode, once in a round. It says what
	// the place of the mode is taken by.
	Once func(ctx context.Context, add func(what string, m measure.Metric, value float64)) error
}

// Translate is the figure of modes on IPv6. All other figures compare to a process of the host.
const Translate = "translate"

// Automatic is the pinning that each load asks for itself.
const Automatic Pinning = "auto"

var pinnings = []Pinning{Automatic, Apart, Together, Anywhere}

// Session is a series of rounds, in each of which every load runs once in
// every mode, the modes in random order.
type Session struct {
	Figure            string
	Modes             []Mode // nil: those of the figure
	CongestionControl string // as in Config
	Rounds            int
	Duration          time.Duration // of one measurement, for the report
	Pinning           Pinning
	Seed              uint64 // of the order; 0 draws one
}

// flags defines the flags that set the session up, with what it holds as
// defaults, and returns what reads them after parsing.
func (s *Session) flags(f *flag.FlagSet) (read func() error) {
	f.IntVar(&s.Rounds, "rounds", s.Rounds, "rounds, in each of which every mode runs everything once")
	f.StringVar(&s.CongestionControl, "cc", "",
		"congestion control in every namespace; by default cubic, or reno where cubic is not allowed")
	f.StringVar((*string)(&s.Pinning), "pin", string(Automatic),
		"CPUs of clients and servers: two (apart), one (together), anywhere, or auto: streams apart, round trips together, connections anywhere")
	f.Uint64Var(&s.Seed, "seed", 0, "seed of the order of modes; 0 draws one")
	modes := f.String("modes", strings.Join(Names(s.Modes), ","), "modes to run (default those of the figure)")
	return func() (err error) {
		if s.Rounds < 1 {
			return fmt.Errorf("%d rounds, want at least one", s.Rounds)
		}
		if !slices.Contains(pinnings, s.Pinning) {
			return fmt.Errorf("unknown pinning %q, want one of %v", s.Pinning, pinnings)
		}
		if s.Seed == 0 {
			s.Seed = rand.Uint64()
		}
		if *modes == "" {
			s.Modes = figureModes(s.Figure)
			return nil
		}
		if s.Modes, err = ParseModes(*modes); err != nil {
			return err
		}
		for _, m := range s.Modes {
			if m.isOnIPv6() != (s.Figure == Translate) {
				return fmt.Errorf("mode %s is none of the figure %s", m, s.Figure)
			}
		}
		return nil
	}
}

// figureModes are the modes of a figure, the one first to which others are compared.
func figureModes(figure string) []Mode {
	if figure == Translate {
		return OnIPv6
	}
	return Modes
}

// Run makes a runner, measures and closes the runner. The loads are asked for
// when the runner is made.
func (s *Session) Run(ctx context.Context, progress io.Writer,
	loads func(context.Context, *Runner) ([]Load, error),
) (report *measure.Report, err error) {
	r, err := New(ctx, Config{Modes: s.Modes, CongestionControl: s.CongestionControl})
	if err != nil {
		return nil, err
	}
	defer func() {
		if cerr := r.Close(); err == nil {
			err = cerr
		}
	}()
	machine, err := measure.ThisMachine(r.CongestionControl)
	if err != nil {
		return nil, err
	}
	report = &measure.Report{
		Figure:    s.Figure,
		Started:   time.Now().UTC().Truncate(time.Second),
		Machine:   machine,
		Rounds:    s.Rounds,
		DurationS: s.Duration.Seconds(),
		Seed:      s.Seed,
		Base:      string(figureModes(s.Figure)[0]),
	}
	list, err := loads(ctx, r)
	if err != nil {
		return nil, err
	}
	if err := s.start(ctx, r, list); err != nil {
		return nil, err
	}
	random := rand.New(rand.NewPCG(s.Seed, 0))
	for round := range s.Rounds {
		fmt.Fprintf(progress, "round %d of %d\n", round+1, s.Rounds)
		if err := s.round(ctx, r, list, random, report); err != nil {
			return nil, err
		}
	}
	report.Finish(Names(s.Modes))
	for _, missing := range r.Missing {
		report.Note("%s", missing)
	}
	return report, nil
}

// pin puts what is started next where the session or the load wants it.
func (s *Session) pin(r *Runner, l Load) (*measure.Pinned, error) {
	if s.Pinning != Automatic {
		return r.Pin(s.Pinning)
	}
	return r.Pin(l.Pin)
}

func (s *Session) start(ctx context.Context, r *Runner, loads []Load) error {
	for _, l := range loads {
		if l.Start == nil {
			continue
		}
		if _, err := s.pin(r, l); err != nil {
			return err
		}
		if err := l.Start(ctx); err != nil {
			return fmt.Errorf("%s: %w", l.Name, err)
		}
	}
	return nil
}

func (s *Session) round(ctx context.Context, r *Runner, loads []Load, random *rand.Rand, report *measure.Report) error {
	for _, l := range loads {
		cpus, err := s.pin(r, l)
		if err != nil {
			return err
		}
		if l.Once != nil {
			err := l.Once(ctx, func(what string, m measure.Metric, value float64) {
				m.Test, m.CPUs = l.Name, cpus
				report.Add(m, what, value)
			})
			if err != nil {
				return fmt.Errorf("%s: %w", l.Name, err)
			}
			continue
		}
		for _, mode := range r.Shuffled(random) {
			err := l.Run(ctx, mode, func(m measure.Metric, value float64) {
				m.Test, m.CPUs = l.Name, cpus
				report.Add(m, string(mode), value)
			})
			if err != nil {
				return fmt.Errorf("%s: %w", l.Name, err)
			}
		}
	}
	return nil
}
