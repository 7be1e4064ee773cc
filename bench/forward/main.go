// Command forward measures round trips of datagrams between two pods of a node: over a bridge,
// over Open vSwitch in user space, and directly from link to link.
//
//	go run ./bench/forward -o forward.json
//
// It owns the pods, which are network namespaces, their links and the switch, and lays the links as
// tsugiki-cni does; those of the mode ovs are ports of the switch, as other plugins lay them. Modes take turns in random order within a round. Both pods' threads are on one CPU, and the
// switch is on another.
//
// It needs root, Open vSwitch, taskset, and what package forward needs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/bench/program"
)

// Sizes of a measurement.
const (
	payload = 128 // bytes
	warmUp  = 200 // round trips that are not counted: neighbors, flows of the switch
)

// options are the command line.
type options struct {
	rounds, trips int
	seed          uint64
	output        program.Output
}

func (o *options) parse(args []string, help io.Writer) error {
	f := flag.NewFlagSet("forward", flag.ContinueOnError)
	f.IntVar(&o.rounds, "rounds", 9, "rounds, in each of which every mode is measured once")
	f.IntVar(&o.trips, "trips", 20000, "round trips of one measurement")
	f.Uint64Var(&o.seed, "seed", 0, "seed of the order; 0 draws one")
	o.output.Flags(f)
	if err := program.Parse(f, args, help); err != nil {
		return err
	}
	if o.rounds < 1 || o.trips < 100 {
		return errors.New("rounds must be positive, trips at least 100")
	}
	if o.seed == 0 {
		o.seed = rand.Uint64()
	}
	return nil
}

func main() {
	o := &options{}
	b := program.Bench{
		Name: "forward", Args: os.Args[1:],
		Parse:   o.parse,
		Measure: o.measure,
		Write: func(r *measure.Report) error {
			return o.output.Write(r, os.Stdout, (*measure.Report).WriteTable)
		},
	}
	os.Exit(b.Main(os.Stderr))
}

// measure makes the modes, and measures them in turn.
func (o *options) measure(ctx context.Context, progress io.Writer) (report *measure.Report, err error) {
	machine, err := measure.ThisMachine("not used")
	if err != nil {
		return nil, err
	}
	report = &measure.Report{Figure: "forward", Started: time.Now(), Machine: machine, Rounds: o.rounds, Seed: o.seed, Base: modeNames[0]}
	report.Note("%d bytes of UDP payload, %d round trips a measurement; both pods on CPU 0, the switch on CPU %d", payload, o.trips, runtime.NumCPU()-1)
	n, err := newNode(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	paths := map[string]*path{}
	for _, name := range modeNames {
		if paths[name], err = n.path(ctx, name); err != nil {
			return nil, fmt.Errorf("make mode %s: %w", name, err)
		}
	}
	order := rand.New(rand.NewPCG(o.seed, 0))
	for round := range o.rounds {
		for _, i := range order.Perm(len(modeNames)) {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			name := modeNames[i]
			if err := o.once(report, name, paths[name]); err != nil {
				return nil, fmt.Errorf("measure mode %s: %w", name, err)
			}
		}
		fmt.Fprintf(progress, "round %d of %d\n", round+1, o.rounds)
	}
	report.Finish(modeNames)
	noteRatio(report, "ovs+direct", "ovs")
	return report, nil
}

// once measures one mode, and checks that its packets went the way of the mode.
func (o *options) once(report *measure.Report, name string, p *path) error {
	before, err := p.directPackets()
	if err != nil {
		return err
	}
	times, err := p.roundTrips(warmUp + o.trips)
	if err != nil {
		return err
	}
	after, err := p.directPackets()
	if err != nil {
		return err
	}
	if went := after - before; p.direct && went < uint64(o.trips) || !p.direct && went != 0 {
		return fmt.Errorf("%d of %d packets went directly", went, len(times))
	}
	times = times[warmUp:]
	slices.Sort(times)
	for metric, rank := range map[string]int{"p50": 50, "p90": 90, "p99": 99} {
		m := measure.Metric{Test: "round trip", Name: metric, Unit: "us", CPUs: &measure.Pinned{}}
		report.Add(m, name, float64(times[len(times)*rank/100])/float64(time.Microsecond))
	}
	return nil
}

// noteRatio adds the ratio of two modes within each round.
func noteRatio(report *measure.Report, mode, base string) {
	found := map[string][]float64{}
	for _, r := range report.Results {
		if r.Metric == "p50" {
			found[r.Mode] = r.Values
		}
	}
	s := measure.Summarize(measure.Ratios(found[mode], found[base]))
	report.Note("p50 of %s to %s within a round: median %.3f, quartiles %.3f..%.3f", mode, base, s.Median, s.Q1, s.Q3)
}
