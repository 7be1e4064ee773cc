// Command agent measures what many containers cost: those that tsugiki-runtime
// grafts, beside those that a bridge connects and those without a network.
//
//	go run ./bench/agent -n 300 -o agent.json
//
// It owns the order of what is measured: containers are started, kind by kind in
// turns, looked at while all of them run, and stopped. density/rig makes the containers,
// and the agent. It needs what density/rig needs, with the CNI plugins, and a C compiler.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/bench/program"
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
	output     program.Output
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
	o.output.Flags(f)
	if err := program.Parse(f, args, help); err != nil {
		return nil, err
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
	var o *options
	b := program.Bench{
		Name: "agent", Args: args,
		Parse: func(args []string, help io.Writer) (err error) {
			o, err = parse(args, help)
			return err
		},
		Measure: func(ctx context.Context, progress io.Writer) (*measure.Report, error) { return bench(ctx, o, progress) },
		Write: func(report *measure.Report) error {
			return o.output.Write(report, stdout, (*measure.Report).WriteTable)
		},
	}
	return b.Main(stderr)
}

// bench measures everything, and takes everything down.
func bench(ctx context.Context, o *options, progress io.Writer) (report *measure.Report, err error) {
	s := &session{options: o, progress: progress, random: rand.New(rand.NewPCG(o.seed, 0))}
	if s.rig, err = newRig(o); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.rig.Close()) }()
	if err := s.prepare(ctx); err != nil {
		return nil, err
	}
	return s.run(ctx)
}
