package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/tsugiki/tsugiki/bench/measure"
)

// session is one run.
type session struct {
	*options
	node     *node
	progress io.Writer
	random   *rand.Rand
	report   measure.Report
	hows     []string // by what means variants charge, as the agent says
}

// run measures every figure, round by round.
func (s *session) run(ctx context.Context) (*measure.Report, error) {
	machine, err := s.node.machine()
	if err != nil {
		return nil, err
	}
	s.report.Started, s.report.Machine = time.Now().UTC().Truncate(time.Second), machine
	s.report.Figure, s.report.Base = "charge", variants[0].name
	s.report.Rounds, s.report.DurationS, s.report.Seed = s.rounds, s.duration.Seconds(), s.seed
	measureFigure := map[string]func(context.Context) error{
		"accuracy": s.accuracy, "isolation": s.isolation, "shared": s.shared, "softirq": s.softirq, "cost": s.cost,
	}
	for round := range s.rounds {
		for _, figure := range s.figures {
			fmt.Fprintf(s.progress, "round %d of %d: %s\n", round+1, s.rounds, figure)
			if err := errors.Join(measureFigure[figure](ctx), ctx.Err()); err != nil {
				return nil, fmt.Errorf("%s: %w", figure, err)
			}
		}
	}
	var names []string
	for _, v := range variants {
		names = append(names, v.name)
	}
	s.report.Finish(names)
	s.note()
	return &s.report, nil
}

// add records a value of the round.
func (s *session) add(v variant, test, name, unit string, value float64) {
	s.report.Add(measure.Metric{Test: test, Name: name, Unit: unit}, v.name, value)
}

func (s *session) note() {
	s.report.Note("off is without the agent; placed is its default: loggers are placed under their containers' quota; " +
		"quota is without that: quotas are lowered")
	s.report.Note("the paper's lsmod is a cat of %d bytes here, one process each time as lsmod is; the paper's machine was another", pageSize)
	s.report.Note("containers and their loggers (%s) share CPU %d, quota 1/N of each %v, and all of them have %d times the weight of another program there",
		s.logger, s.cpu, period, weight)
	for _, how := range s.hows {
		s.report.Note("the agent says of the loggers: %s", how)
	}
	s.report.Note("share is CPU time by the kernel's accounts, in %% of one CPU; charged is what the agent says")
}

// shuffled is a list in random order.
func shuffled[T any](s *session, list []T) []T {
	mixed := make([]T, len(list))
	for i, j := range s.random.Perm(len(list)) {
		mixed[i] = list[j]
	}
	return mixed
}
