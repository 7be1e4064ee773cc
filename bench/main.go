// Command bench measures Tsugiki's figures, side by side with a host process
// and a container behind address translation.
//
//	go run ./bench -figure graft -o graft.json
//
// It owns which tests a figure has and their order; what is measured comes
// from netdrive (driver/), which it builds with the C compiler at each start.
// Modes take turns in random order and are compared within a round, because
// figures of a shared machine mean nothing by themselves. It needs what
// bench/rig needs, and musl-gcc or gcc with a static libc.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/bench/rig"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// automatic is the placement that each test asks for itself.
const automatic rig.Placement = "auto"

var placements = []rig.Placement{automatic, rig.Apart, rig.Together, rig.Anywhere}

// options are the command line.
type options struct {
	figure   string
	output   string
	json     bool
	rounds   int
	duration time.Duration
	warmup   time.Duration
	size     int
	tests    []string
	modes    []rig.Mode
	cc       string
	place    rig.Placement // automatic: as each test wants
	seed     uint64
}

func run(args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintf(stderr, "bench: %v\n", err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	report, err := measureFigure(ctx, o, stderr)
	if err != nil {
		fmt.Fprintf(stderr, "bench: %v\n", err)
		return 1
	}
	report.Command = append([]string{"bench"}, args...)
	if err := write(report, o, stdout); err != nil {
		fmt.Fprintf(stderr, "bench: %v\n", err)
		return 1
	}
	return 0
}

func parse(args []string, help io.Writer) (options, error) {
	o := options{}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(io.Discard) // errors are printed by the caller, in one line
	f.StringVar(&o.figure, "figure", "graft", "what to measure; the only figure is graft")
	f.StringVar(&o.output, "o", "", "write the results as JSON into this file too")
	f.BoolVar(&o.json, "j", false, "print JSON instead of the table")
	f.IntVar(&o.rounds, "rounds", 7, "rounds, in each of which every mode runs every test")
	f.DurationVar(&o.duration, "duration", 1500*time.Millisecond, "time of one measurement")
	f.DurationVar(&o.warmup, "warmup", 200*time.Millisecond, "time before it that does not count")
	f.IntVar(&o.size, "size", 0, "bytes per message; 0 is 1 for round trips and 131072 for streams")
	f.StringVar(&o.cc, "cc", "", "congestion control in every namespace; by default cubic, or reno where cubic is not allowed")
	f.StringVar((*string)(&o.place), "pin", string(automatic),
		"CPUs of clients and servers: two (apart), one (together), anywhere, or auto: streams apart, others together")
	f.Uint64Var(&o.seed, "seed", 0, "seed of the order of modes; 0 draws one")
	testList := f.String("tests", strings.Join(testNames(), ","), "tests to run")
	modeList := f.String("modes", strings.Join(rig.Names(rig.Modes), ","), "modes to run")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			f.SetOutput(help)
			f.PrintDefaults()
		}
		return o, err
	}
	o.tests = strings.Split(*testList, ",")
	var err error
	if o.modes, err = rig.ParseModes(*modeList); err != nil {
		return o, err
	}
	if o.seed == 0 {
		o.seed = rand.Uint64()
	}
	return o, o.check(f.Args())
}

// check refuses what cannot be run.
func (o options) check(rest []string) error {
	if len(rest) > 0 {
		return fmt.Errorf("unexpected argument %q", rest[0])
	}
	if o.figure != "graft" {
		return fmt.Errorf("unknown figure %q, want graft", o.figure)
	}
	if !slices.Contains(placements, o.place) {
		return fmt.Errorf("unknown placement %q, want one of %v", o.place, placements)
	}
	if o.rounds < 1 || o.duration <= 0 || o.warmup < 0 || o.size < 0 {
		return errors.New("rounds and duration must be positive, warmup and size not negative")
	}
	for _, name := range o.tests {
		if !slices.Contains(testNames(), name) {
			return fmt.Errorf("unknown test %q, want some of %s", name, strings.Join(testNames(), ","))
		}
	}
	return nil
}

// measureFigure builds everything, runs all rounds and takes everything down.
func measureFigure(ctx context.Context, o options, progress io.Writer) (report *measure.Report, err error) {
	dir, err := os.MkdirTemp("", "tsugiki-bench-")
	if err != nil {
		return nil, fmt.Errorf("make folder for the driver: %w", err)
	}
	defer os.RemoveAll(dir)
	driver, err := buildDriver(ctx, dir)
	if err != nil {
		return nil, err
	}
	r, err := rig.New(ctx, rig.Config{Modes: o.modes, CongestionControl: o.cc})
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
		Figure:    o.figure,
		Started:   time.Now().UTC().Truncate(time.Second),
		Machine:   machine,
		Rounds:    o.rounds,
		DurationS: o.duration.Seconds(),
		Seed:      o.seed,
		Base:      string(rig.Host),
	}
	f := &figure{options: o, rig: r, driver: driver, report: report}
	if err := f.serve(ctx); err != nil {
		return nil, err
	}
	random := rand.New(rand.NewPCG(o.seed, 0))
	for round := range o.rounds {
		fmt.Fprintf(progress, "round %d of %d\n", round+1, o.rounds)
		if err := f.round(ctx, random); err != nil {
			return nil, err
		}
	}
	f.note()
	report.Finish(rig.Names(o.modes))
	return report, nil
}

func write(report *measure.Report, o options, stdout io.Writer) error {
	if o.output != "" {
		if err := report.WriteFile(o.output); err != nil {
			return err
		}
	}
	if o.json {
		return report.WriteJSON(stdout)
	}
	return report.WriteTable(stdout)
}

// decode reads the line of JSON that netdrive prints.
func decode(line []byte) (sample, error) {
	var s sample
	if err := json.Unmarshal(line, &s); err != nil {
		return s, fmt.Errorf("read netdrive's result %q: %w", line, err)
	}
	if s.Ops == 0 || s.Bytes == 0 || s.Seconds <= 0 {
		return s, fmt.Errorf("netdrive measured nothing: %s", line)
	}
	return s, nil
}
