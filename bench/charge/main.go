// Command charge measures what becomes of CPU time that loggers, daemons and the
// kernel spend for containers: it repeats the measurements of Matsushita, Matsubara
// and Takada, "柔軟なCPUリソースアカウントのためのcgroupの拡張手法", tables 2 to 9,
// without charging and with it, and prints them beside the paper's figures.
//
//	go run ./bench/charge -o charge.json
//
// It owns the containers that are measured (containerd and runc run them), the
// measurements, and their tables and plots. What the agent says of itself is only
// ever compared with what the kernel's own clocks say: cgroups' usage and the CPU
// clocks of processes. Variants take turns in random order within a round, because
// figures of a shared machine mean nothing by themselves.
//
// It needs root, Linux 5.15, containerd with ctr, runc, busybox (static) and
// sysbench, and what testkit/engines needs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/bench/program"
)

func main() { os.Exit(dispatch(os.Args[1:])) }

// programs are what the bench starts of itself, by their first argument.
var programs = map[string]func(args []string) int{
	lineLogger: logLines, collector: collect, flooder: flood, caller: call,
}

// dispatch runs the bench or one of its programs.
func dispatch(args []string) int {
	if len(args) > 0 && programs[args[0]] != nil {
		return programs[args[0]](args[1:])
	}
	return run(args, os.Stdout, os.Stderr)
}

// options are the command line.
type options struct {
	figures  []string
	variants []variant
	commands []command
	quotas   []time.Duration // of a period
	counts   []int           // of containers on one CPU
	logger   string
	rounds   int
	duration time.Duration
	settle   time.Duration
	many     int // containers of figure cost
	cpu      int
	seed     uint64
	output   program.Output
}

// figureNames are what can be measured, in the order in which it is.
var figureNames = []string{"accuracy", "isolation", "shared", "softirq", "cost"}

// parse reads the command line.
func parse(args []string, help io.Writer) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("charge", flag.ContinueOnError)
	figures := f.String("figure", strings.Join(figureNames, ","), "what to measure")
	variants := f.String("variants", "off,placed,quota", "without charging, by placing helpers under the quota, by lowering the quota")
	commands := f.String("commands", "yes,cat,echo", "what noisy containers run")
	f.StringVar(&o.logger, "logger", "tsugiki", "tsugiki-log, or line: one write(2) per line, as most loggers do")
	f.IntVar(&o.rounds, "rounds", 3, "rounds, in each of which everything is measured once")
	seconds := f.Int("seconds", 10, "time of one measurement")
	f.IntVar(&o.many, "many", 100, "containers of the figure cost")
	f.IntVar(&o.cpu, "cpu", -1, "the CPU that all containers share; -1 is the last")
	quick := f.Bool("quick", false, "one quota, two containers, one round of 1 s, unless said otherwise: to see that it runs")
	f.Uint64Var(&o.seed, "seed", 0, "seed of the order; 0 draws one")
	o.output.Flags(f)
	f.Lookup("o").Usage += ", and plots beside it"
	if err := program.Parse(f, args, help); err != nil {
		return nil, err
	}
	o.quotas = []time.Duration{50 * time.Millisecond, 33 * time.Millisecond, 25 * time.Millisecond, 20 * time.Millisecond}
	o.counts = []int{1, 2, 3, 4, 5}
	o.settle = 2 * time.Second
	if *quick {
		o.shorten(f, seconds)
	}
	o.duration = time.Duration(*seconds) * time.Second
	return o, o.choose(*figures, *variants, *commands)
}

// shorten takes less of what was not asked for.
func (o *options) shorten(f *flag.FlagSet, seconds *int) {
	set := make(map[string]bool)
	f.Visit(func(f *flag.Flag) { set[f.Name] = true })
	o.quotas, o.counts = o.quotas[3:], o.counts[:2]
	o.settle = time.Second
	if !set["rounds"] {
		o.rounds = 1
	}
	if !set["seconds"] {
		*seconds = 1
	}
	if !set["many"] {
		o.many = 10
	}
}

// choose checks the values, and finds what the names mean.
func (o *options) choose(figures, variantNames, commandNames string) (err error) {
	o.figures = strings.Split(figures, ",")
	for _, name := range o.figures {
		if !slices.Contains(figureNames, name) {
			return fmt.Errorf("unknown figure %q, want some of %s", name, strings.Join(figureNames, ","))
		}
	}
	if o.variants, err = pick(variants, variantNames, func(v variant) string { return v.name }); err != nil {
		return fmt.Errorf("unknown variant %w", err)
	}
	if o.commands, err = pick(commands, commandNames, func(c command) string { return c.name }); err != nil {
		return fmt.Errorf("unknown command %w", err)
	}
	if o.logger != "tsugiki" && o.logger != "line" {
		return fmt.Errorf("unknown logger %q, want tsugiki or line", o.logger)
	}
	if o.rounds < 1 || o.many < 1 || o.duration < time.Second {
		return errors.New("rounds and many must be positive, seconds at least 1")
	}
	if o.cpu < 0 {
		o.cpu = runtime.NumCPU() - 1
	}
	if o.seed == 0 {
		o.seed = rand.Uint64()
	}
	return nil
}

// pick finds those of a list whose names are in names, in the order of the list.
func pick[T any](list []T, names string, name func(T) string) ([]T, error) {
	wanted := strings.Split(names, ",")
	picked := slices.DeleteFunc(slices.Clone(list), func(t T) bool { return !slices.Contains(wanted, name(t)) })
	for _, w := range wanted {
		if !slices.ContainsFunc(picked, func(t T) bool { return name(t) == w }) {
			var known []string
			for _, t := range list {
				known = append(known, name(t))
			}
			return nil, fmt.Errorf("%q, want some of %s", w, strings.Join(known, ","))
		}
	}
	return picked, nil
}

func run(args []string, stdout, stderr io.Writer) int {
	var o *options
	b := program.Bench{
		Name: "charge", Args: args,
		Parse: func(args []string, help io.Writer) (err error) {
			o, err = parse(args, help)
			return err
		},
		Measure: func(ctx context.Context, progress io.Writer) (*measure.Report, error) { return bench(ctx, o, progress) },
		Write:   func(report *measure.Report) error { return o.write(report, stdout) },
	}
	return b.Main(stderr)
}

// write prints the report, and writes it and its plots into files.
func (o *options) write(report *measure.Report, stdout io.Writer) error {
	if err := o.output.Write(report, stdout, o.writeTables); err != nil || o.output.File == "" {
		return err
	}
	return o.writePlots(report, strings.TrimSuffix(o.output.File, filepath.Ext(o.output.File)))
}

// bench measures everything, and takes everything down.
func bench(ctx context.Context, o *options, progress io.Writer) (report *measure.Report, err error) {
	n, err := newNode(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	s := &session{options: o, node: n, progress: progress, random: rand.New(rand.NewPCG(o.seed, 0))}
	return s.run(ctx)
}
