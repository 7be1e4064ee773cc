// Command bench measures what many nodes of tsugiki-kube cost a cluster's API server and themselves,
// and how soon all of them follow a change of one resource.
//
//	go -C kube run ./bench -nodes 1000 -pods 10000 -endpoints 1000
//	go -C kube run ./bench -nodes 1 -pods 300 -namespaces 1 -agent ../bin/tsugiki
//	go -C kube run ./bench -only faults -limit 6m
//	go -C kube run ./bench -only watches -nodes 500
//
// The API server, etcd and the controllers are real; each controller has its own connection, with the
// token of its node. kwok stands for kubelets: it writes the status of nodes and pods. The agents are
// in memory, behind the agent's API, unless -agent names a real one.
//
// It owns the order of what is measured (figures.go). It needs root, etcd, and what scripts/kube.sh
// builds.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/bench/program"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// options are the command line.
type options struct {
	nodes, pods, endpoints, namespaces int
	perProcess, rounds                 int
	idle, down, limit                  time.Duration
	only                               string
	flows                              bool
	agent                              string
	output                             program.Output
}

// nodesMax is what addresses of nodes and files of a process allow.
const nodesMax = 5000

func parse(args []string, help io.Writer) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("kube", flag.ContinueOnError)
	f.IntVar(&o.nodes, "nodes", 1000, "nodes")
	f.IntVar(&o.pods, "pods", 10000, "grafted pods; as many of each namespace on each node")
	f.IntVar(&o.endpoints, "endpoints", 1000, "GraftEndpoints")
	f.IntVar(&o.namespaces, "namespaces", 10, "namespaces, each with a GraftPolicy for all of its pods")
	f.IntVar(&o.perProcess, "per-process", 50, "controllers of nodes in a process; the last node has one of its own")
	f.IntVar(&o.rounds, "rounds", 5, "how often each resource is changed")
	f.DurationVar(&o.idle, "idle", time.Minute, "how long nothing changes, to see what watches cost then")
	f.DurationVar(&o.down, "down", 20*time.Second, "how long the API server is away")
	f.DurationVar(&o.limit, "limit", 15*time.Minute, "how long a round of a figure may take; what nodes have done until then is written")
	f.StringVar(&o.only, "only", "", "what is measured: "+changes+", "+faults+", or "+watches+" (which has no nodes, but as many clients)")
	f.BoolVar(&o.flows, "flows", true, "the FlowSchemas of deploy/ are there")
	f.StringVar(&o.agent, "agent", "", "tsugiki's binary, whose agent serves the one node")
	o.output.Flags(f)
	if err := program.Parse(f, args, help); err != nil {
		return nil, err
	}
	switch {
	case o.nodes < 1 || o.nodes > nodesMax || o.namespaces < 1 || o.perProcess < 1:
		return nil, fmt.Errorf("want 1 to %d nodes, and namespaces and nodes of a process", nodesMax)
	case o.pods < 1 || o.pods%(o.nodes*o.namespaces) != 0:
		return nil, fmt.Errorf("%d pods, want a multiple of %d: as many of each namespace on each node", o.pods, o.nodes*o.namespaces)
	case o.endpoints < o.namespaces+2:
		return nil, fmt.Errorf("%d endpoints, want %d or more: one for servers, one for each namespace, and one that nobody uses", o.endpoints, o.namespaces+2)
	case o.rounds < 1 || o.rounds > 99 || o.idle <= 0 || o.down <= 0 || o.limit <= 0:
		return nil, errors.New("want 1 to 99 rounds, and positive durations")
	case !slices.Contains([]string{"", changes, faults, watches}, o.only):
		return nil, fmt.Errorf("-only %q, want %s, %s or %s", o.only, changes, faults, watches)
	case o.agent != "" && o.nodes != 1:
		return nil, errors.New("-agent is for one node")
	}
	if o.agent == "" {
		return o, nil
	}
	var err error
	o.agent, err = filepath.Abs(o.agent)
	return o, err
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == controllersArg {
		os.Exit(runControllers(os.Stdin, os.Stdout))
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	var o *options
	b := program.Bench{
		Name: "kube", Args: args,
		Parse: func(args []string, help io.Writer) (err error) {
			o, err = parse(args, help)
			return err
		},
		Measure: func(ctx context.Context, progress io.Writer) (report *measure.Report, err error) {
			clean, failed := testkit.Outside(func(t testkit.TB) { report, err = bench(ctx, t, o, progress) })
			clean()
			return report, errors.Join(err, failed)
		},
		Write: func(report *measure.Report) error { return o.output.Write(report, stdout, writeTable) },
	}
	return b.Main(stderr)
}

// bench measures everything. The end of t takes down what it has made.
func bench(ctx context.Context, t testkit.TB, o *options, progress io.Writer) (*measure.Report, error) {
	machine, err := measure.ThisMachine("not used")
	if err != nil {
		return nil, err
	}
	report := &measure.Report{Figure: "kube", Started: time.Now(), Machine: machine, Rounds: o.rounds}
	w := &world{o: o, t: t, progress: progress}
	if err := w.build(ctx); err != nil {
		return nil, err
	}
	f := &figures{world: w, report: report}
	if err := f.run(ctx); err != nil {
		return nil, err
	}
	return report, nil
}
