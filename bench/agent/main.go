// Command agent measures what many containers cost: those that tsugiki-runtime
// grafts, beside those that a bridge connects and those without a network.
//
//	go run ./bench/agent -n 300 -o agent.json
//
// It owns the order of what is measured: containers are started, kind by kind in
// turns, looked at while all of them run, and stopped. All containers are made by
// runc, the bridge's network by the CNI plugins, as engines do it. It needs root,
// and the programs and the kernel that testkit/engines needs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/tsugiki/tsugiki/bench/measure"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// options are the command line.
type options struct {
	containers int
	rounds     int
	takeovers  int
	duration   time.Duration
	runtime    string
	seed       uint64
	output     string
	asJSON     bool
}

// containersMax is what ports and the bridge, which has 1024, allow.
const containersMax = 1000

func parse(args []string, help io.Writer) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("agent", flag.ContinueOnError)
	f.IntVar(&o.containers, "n", 300, "containers of each kind")
	f.IntVar(&o.rounds, "rounds", 6, "rounds of measuring connections: with one container, and with all")
	f.IntVar(&o.takeovers, "takeovers", 5, "how often the agent is killed")
	f.DurationVar(&o.duration, "duration", time.Second, "time of one measurement of connections")
	f.StringVar(&o.runtime, "runtime", "runc", "OCI runtime that makes all containers")
	f.Uint64Var(&o.seed, "seed", 0, "seed of the order of kinds; 0 draws one")
	f.StringVar(&o.output, "o", "", "write the results as JSON into this file too")
	f.BoolVar(&o.asJSON, "j", false, "print JSON instead of the table")
	f.SetOutput(io.Discard) // errors are printed in one line
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			f.SetOutput(help)
			f.PrintDefaults()
		}
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if o.containers < 1 || o.containers > containersMax {
		return nil, fmt.Errorf("%d containers, want 1 to %d", o.containers, containersMax)
	}
	if o.rounds < 1 || o.takeovers < 1 || o.duration <= 0 {
		return nil, errors.New("rounds, takeovers and duration must be positive")
	}
	if o.seed == 0 {
		o.seed = rand.Uint64()
	}
	return o, nil
}

func run(args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintf(stderr, "agent: %v\n", err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	report, err := bench(ctx, o, stderr)
	if err == nil {
		report.Command = append([]string{"agent"}, args...)
		err = write(report, o, stdout)
	}
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "agent: interrupted")
		return 1
	case err != nil:
		fmt.Fprintf(stderr, "agent: %v\n", err)
		return 1
	}
	return 0
}

func write(report *measure.Report, o *options, stdout io.Writer) error {
	print := report.WriteTable
	if o.asJSON {
		print = report.WriteJSON
	}
	if err := print(stdout); err != nil {
		return err
	}
	if o.output == "" {
		return nil
	}
	return report.WriteFile(o.output)
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
