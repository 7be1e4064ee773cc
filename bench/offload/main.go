// Command offload measures pods of a node whose Open vSwitch is on a DPU, beside pods of a node whose
// switch is on the host.
//
//	offload -figure latency   round trips of datagrams, and who spends CPU time on them
//	offload -figure control   what it takes to change flows and to install them again
//	offload -figure restart   how long packets wait when ovs-vswitchd of the DPU is killed and started
//
// It owns the nodes, which are network namespaces with Open vSwitch in user space, and attaches pods
// by tsugiki-cni. The DPU is emulated: a namespace and a CPU of its own, with links for virtual
// functions. What a DPU's processors and its hardware add or take is not measured.
//
// It needs root, a BPF file system at /sys/fs/bpf, Open vSwitch, taskset, CNI's plugins, and what
// package forward needs.
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
	"slices"
	"time"

	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/bench/program"
)

// options are the command line.
type options struct {
	figure        string
	rounds, trips int
	pods, rules   int
	bin           string
	output        program.Output
}

func (o *options) parse(args []string, help io.Writer) error {
	f := flag.NewFlagSet("offload", flag.ContinueOnError)
	f.StringVar(&o.figure, "figure", "latency", "what is measured: latency, control or restart")
	f.IntVar(&o.rounds, "rounds", 5, "rounds, in each of which everything is measured once")
	f.IntVar(&o.trips, "trips", 5000, "round trips of one measurement")
	f.IntVar(&o.pods, "pods", 500, "pods of the figure control")
	f.IntVar(&o.rules, "rules", 100, "rules of its policy")
	f.StringVar(&o.bin, "bin", "bin", "folder of tsugiki's programs")
	o.output.Flags(f)
	if err := program.Parse(f, args, help); err != nil {
		return err
	}
	if !slices.Contains([]string{"latency", "control", "restart"}, o.figure) {
		return fmt.Errorf("unknown figure %q; write latency, control or restart", o.figure)
	}
	if o.rounds < 1 || o.trips < 100 || o.pods < 2 || o.pods > 4000 || o.rules < 1 {
		return errors.New("rounds and rules must be positive, trips at least 100, pods 2 to 4000")
	}
	var err error
	o.bin, err = filepath.Abs(o.bin)
	return err
}

func main() {
	o := &options{}
	b := program.Bench{
		Name: "offload", Args: os.Args[1:],
		Parse:   o.parse,
		Measure: o.measure,
		Write: func(r *measure.Report) error {
			table := (*measure.Report).WriteTable
			if o.figure == "latency" {
				table = writeTables
			}
			return o.output.Write(r, os.Stdout, table)
		},
	}
	os.Exit(b.Main(os.Stderr))
}

// measure makes the nodes, and measures a figure.
func (o *options) measure(ctx context.Context, progress io.Writer) (report *measure.Report, err error) {
	machine, err := measure.ThisMachine("not used")
	if err != nil {
		return nil, err
	}
	report = &measure.Report{Figure: "offload-" + o.figure, Started: time.Now(), Machine: machine, Rounds: o.rounds, Seed: rand.Uint64()}
	f, err := newFabric(o.bin)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	figure := map[string]func(context.Context, *fabric, *measure.Report, io.Writer) error{
		"latency": o.latency, "control": o.control, "restart": o.restart,
	}
	return report, figure[o.figure](ctx, f, report, progress)
}
