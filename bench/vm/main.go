// Command vm measures the ways of a program in a virtual machine to a remote host: by sockets of the
// host's (tsugiki guest), by a paravirtual network card on a TAP device or behind address translation
// in user space, and, where the program knows IPv4 only and the host has none, by a proxy on the host or
// in the guest.
//
//	vm -accelerators uml,tcg -o vm.json
//
// It owns the guests, which it boots for the time of the run, their networks, which are namespaces, and
// what is measured: streams both ways, echoes, and the CPU time that they take on the host. Ways take
// turns in random order within a round. Figures of two accelerators are not comparable.
//
// It needs root, what internal/testkit/machine needs of the accelerators, slirp4netns, haproxy, dnsmasq,
// and a C compiler with a static libc.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/bench/modes"
	"github.com/tsugiki/tsugiki/bench/program"
	"github.com/tsugiki/tsugiki/internal/testkit/machine"
)

// options are the command line.
type options struct {
	rounds       int
	duration     time.Duration
	accelerators string
	modes        string
	kernel       string
	full         bool
	seed         uint64
	output       program.Output
}

func (o *options) parse(args []string, help io.Writer) error {
	f := flag.NewFlagSet("vm", flag.ContinueOnError)
	f.IntVar(&o.rounds, "rounds", 7, "rounds, in each of which every way is measured once")
	f.DurationVar(&o.duration, "duration", 400*time.Millisecond, "time of one measurement")
	f.StringVar(&o.accelerators, "accelerators", "uml", "how guests are executed, separated by commas: uml, tcg")
	f.StringVar(&o.modes, "modes", strings.Join(modeNames, ","), "ways to measure, separated by commas")
	f.StringVar(&o.kernel, "kernel", "", "kernel of tcg's guests: the folder that scripts/kernels/fetch.sh prints")
	f.BoolVar(&o.full, "full", false, "print a line for each figure, with its spread")
	f.Uint64Var(&o.seed, "seed", 0, "seed of the order of ways; 0 draws one")
	o.output.Flags(f)
	if err := program.Parse(f, args, help); err != nil {
		return err
	}
	if o.rounds < 1 || o.duration < 10*time.Millisecond {
		return errors.New("rounds must be positive, the duration 10 ms at least")
	}
	for _, a := range o.list() {
		if a != machine.UML && a != machine.TCG {
			return fmt.Errorf("unknown accelerator %q; write uml, tcg or uml,tcg", a)
		}
	}
	for mode := range strings.SplitSeq(o.modes, ",") {
		if !slices.Contains(modeNames, mode) {
			return fmt.Errorf("unknown mode %q; write some of %s", mode, strings.Join(modeNames, ","))
		}
	}
	if slices.Contains(o.list(), machine.TCG) && o.kernel == "" {
		return errors.New("tcg needs a kernel; write -kernel $(scripts/kernels/fetch.sh 6.1)")
	}
	if o.seed == 0 {
		o.seed = rand.Uint64()
	}
	return nil
}

func (o *options) list() (list []machine.Accelerator) {
	for name := range strings.SplitSeq(o.accelerators, ",") {
		list = append(list, machine.Accelerator(name))
	}
	return list
}

func main() {
	o := &options{}
	b := program.Bench{
		Name: "vm", Args: os.Args[1:],
		Parse:   o.parse,
		Measure: o.measure,
		Write: func(r *measure.Report) error {
			table := writeTable
			if o.full {
				table = (*measure.Report).WriteTable
			}
			return o.output.Write(r, os.Stdout, table)
		},
	}
	os.Exit(b.Main(os.Stderr))
}

// measure measures all ways with one accelerator after the other.
func (o *options) measure(ctx context.Context, progress io.Writer) (*measure.Report, error) {
	congestion, err := modes.ChooseCongestionControl("")
	if err != nil {
		return nil, err
	}
	m, err := measure.ThisMachine(congestion)
	if err != nil {
		return nil, err
	}
	report := &measure.Report{
		Figure: "vm", Started: time.Now().UTC().Truncate(time.Second), Machine: m, Rounds: o.rounds, DurationS: o.duration.Seconds(),
		Seed: o.seed, Base: outsourced,
	}
	for _, note := range explanations {
		report.Note("%s", note)
	}
	for _, accelerator := range o.list() {
		if err := o.with(ctx, accelerator, report, progress); err != nil {
			return nil, fmt.Errorf("%s: %w", accelerator, err)
		}
	}
	report.Finish(modeNames)
	noteAims(report)
	return report, nil
}

// with boots the guests of an accelerator, and measures them.
func (o *options) with(ctx context.Context, accelerator machine.Accelerator, report *measure.Report, progress io.Writer) (err error) {
	fmt.Fprintf(progress, "%s: booting\n", accelerator)
	r, err := newRig(ctx, config{accelerator, o.kernel, report.Machine.CongestionControl, strings.Split(o.modes, ",")})
	defer func() { err = errors.Join(err, r.close()) }()
	if err != nil {
		return err
	}
	order := rand.New(rand.NewPCG(o.seed, 0))
	for round := range o.rounds {
		for _, i := range order.Perm(len(r.ways)) {
			w := r.ways[i]
			add := func(m measure.Metric, value float64) {
				m.Test = fmt.Sprintf("%s %s", accelerator, w.setting)
				report.Add(m, w.mode, value)
			}
			if err := o.once(ctx, w, add); err != nil {
				return fmt.Errorf("measure %s, %s: %w", w.setting, w.mode, errors.Join(err, ctx.Err()))
			}
		}
		fmt.Fprintf(progress, "%s: round %d of %d\n", accelerator, round+1, o.rounds)
	}
	return nil
}
