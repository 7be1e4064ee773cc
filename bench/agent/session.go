package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/density/rig"
)

// The modes of connection rates.
const (
	alone = "alone" // the only container
	among = "among" // one of all
)

// session is one run.
type session struct {
	*options
	rig      *rig.Rig
	servers  map[string]netip.AddrPort // of the remote's, by client
	progress io.Writer
	random   *rand.Rand

	costs, rates measure.Report // whose ratios have different bases
	running      map[kind][]*rig.Container
}

// run measures connections first and last with one container and between that with
// all, so that what changes slowly on the machine does not pass for a difference.
func (s *session) run(ctx context.Context) (*measure.Report, error) {
	machine, err := s.machine(ctx)
	if err != nil {
		return nil, err
	}
	started := time.Now().UTC().Truncate(time.Second)
	room, err := s.checkRoom(s.containers)
	if err != nil {
		return nil, err
	}
	fmt.Fprintln(s.progress, room)
	s.costs.Base, s.rates.Base = string(bare), alone
	half := (s.rounds + 1) / 2
	for _, step := range []func(context.Context) error{
		func(ctx context.Context) error { return s.connect(ctx, alone, half) },
		s.startAll,
		s.look,
		func(ctx context.Context) error { return s.connect(ctx, among, s.rounds) },
		s.takeOver,
		s.stopAll,
		func(ctx context.Context) error { return s.connect(ctx, alone, s.rounds-half) },
		func(context.Context) error { return s.checkEmpty() },
	} {
		if err := errors.Join(step(ctx), ctx.Err()); err != nil {
			return nil, err
		}
	}
	report := &s.costs
	report.Finish(names(kinds))
	s.rates.Finish([]string{alone, among})
	report.Results = append(report.Results, s.rates.Results...)
	report.Figure, report.Started, report.Machine = "agent", started, machine
	report.Rounds, report.DurationS, report.Seed = s.rounds, s.duration.Seconds(), s.seed
	report.Base = fmt.Sprintf("%s, and of connections to %s,", bare, alone)
	s.note(report, room)
	return report, nil
}

func (s *session) note(report *measure.Report, room string) {
	report.Note("%s", room)
	report.Note("start is until the runtime has returned and the program serves; stop is from the kill to the end of delete; "+
		"%d containers of each kind, in turns, all of them up at the end", s.containers)
	report.Note("%s has a loopback only; %s is what CNI's bridge, host-local and portmap do; %s is tsugiki-runtime; "+
		"all have Docker's seccomp profile", bare, bridge, graft)
	report.Note("tcp_crr is a program's connections to another host; to_host is the ratio to a container in the host's " +
		"network namespace, in the same round")
	report.Note("takeover is from SIGKILL until the next agent has all containers, started at once; longest_bind and longest_connect " +
		"are the longest calls meanwhile, of one that needs the agent and of one that does not")
	if s.containers == 300 {
		report.Note("budget: an agent with 300 containers takes less than 80 MiB")
	}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// startAll starts all containers and leaves them running.
func (s *session) startAll(ctx context.Context) error {
	s.running = make(map[kind][]*rig.Container)
	took := make(map[kind][]float64)
	for i := range s.containers {
		if i%50 == 0 {
			fmt.Fprintf(s.progress, "starting containers: %d of %d\n", i, s.containers)
		}
		for _, k := range s.shuffled() {
			c, err := s.start(ctx, k, i)
			if err != nil {
				return err
			}
			s.running[k] = append(s.running[k], c)
			took[k] = append(took[k], milliseconds(c.Started()))
		}
	}
	s.record("start", took)
	return nil
}

func (s *session) stopAll(ctx context.Context) error {
	took := make(map[kind][]float64)
	for i := range s.containers {
		if i%50 == 0 {
			fmt.Fprintf(s.progress, "stopping containers: %d of %d\n", i, s.containers)
		}
		for _, k := range s.shuffled() {
			d, err := s.running[k][i].Stop(ctx)
			if err != nil {
				return err
			}
			took[k] = append(took[k], milliseconds(d))
		}
	}
	s.record("stop", took)
	return nil
}

func (s *session) shuffled() []kind {
	order := slices.Clone(kinds)
	s.random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	return order
}

func (s *session) record(test string, took map[kind][]float64) {
	for _, k := range kinds {
		for _, ms := range took[k] {
			s.costs.Add(measure.Metric{Test: test, Name: "wall", Unit: "ms"}, string(k), ms)
		}
		s.costs.Add(measure.Metric{Test: test, Name: "p99", Unit: "ms"}, string(k), p99(took[k]))
	}
}

// p99 is the smallest value that 99 % are not above.
func p99(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[int(math.Ceil(0.99*float64(len(sorted))))-1]
}

// connect counts connections, each time in a new container.
func (s *session) connect(ctx context.Context, mode string, rounds int) error {
	fmt.Fprintf(s.progress, "connections, %s: %d rounds\n", mode, rounds)
	for range rounds {
		rates := make(map[string]float64)
		for _, i := range s.random.Perm(len(clients)) {
			rate, err := s.rate(ctx, clients[i], s.duration)
			if err != nil {
				return err
			}
			rates[clients[i]] = rate
		}
		for _, client := range clients {
			test := "tcp_crr " + client
			s.rates.Add(measure.Metric{Test: test, Name: "rate", Unit: "1/s", HigherIsBetter: true}, mode, rates[client])
			if client != "host" {
				s.rates.Add(measure.Metric{Test: test, Name: "to_host", Unit: "ratio", HigherIsBetter: true}, mode, rates[client]/rates["host"])
			}
		}
	}
	return nil
}

// takeOver kills the agent under all containers.
func (s *session) takeOver(ctx context.Context) error {
	fmt.Fprintf(s.progress, "killing the agent: %d times\n", s.takeovers)
	workers := make(map[string]*worker)
	for _, call := range []string{"bind", "connect"} {
		w, err := s.startWorker(ctx, call)
		if err != nil {
			return err
		}
		defer w.questions.Close()
		workers[call] = w
	}
	add := func(name string, d time.Duration) {
		s.costs.Add(measure.Metric{Test: "takeover", Name: name, Unit: "ms"}, string(graft), milliseconds(d))
	}
	for range s.takeovers {
		for _, w := range workers { // what was before does not count
			if _, err := w.longest(ctx); err != nil {
				return err
			}
		}
		took, err := s.replaceAgent(ctx, s.containers+len(workers))
		if err != nil {
			return err
		}
		add("all", took)
		for call, w := range workers {
			d, err := w.longest(ctx)
			if err != nil {
				return err
			}
			add("longest_"+call, d)
		}
	}
	for _, w := range workers {
		if _, err := w.Stop(ctx); err != nil {
			return err
		}
	}
	return nil
}

const (
	// takeoverLimit is how long an agent may take until it has all containers.
	takeoverLimit = 60 * time.Second
	// pollInterval is between two looks at the agent's containers, and so the precision of
	// a takeover.
	pollInterval = 2 * time.Millisecond
)

// replaceAgent kills the agent, starts another, and measures how long it takes until that
// one has all containers.
func (s *session) replaceAgent(ctx context.Context, containers int) (time.Duration, error) {
	since := time.Now()
	s.rig.EndAgent()
	agent, err := s.rig.StartAgent(ctx, "")
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, takeoverLimit)
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		list, err := agent.Client().Containers()
		have := len(slices.DeleteFunc(list, func(c api.Container) bool { return c.State != "running" }))
		if err == nil && have == containers {
			return time.Since(since), nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return 0, fmt.Errorf("wait for an agent with %d containers: %w: it has %d: %w", containers, ctx.Err(), have, err)
		}
	}
}

// look measures what holds all containers while nothing happens.
func (s *session) look(ctx context.Context) error {
	list, err := s.usage(ctx, s.containers)
	for _, u := range list {
		s.costs.Add(measure.Metric{Test: u.test, Name: u.name, Unit: u.unit}, string(u.kind), u.value)
	}
	return err
}
