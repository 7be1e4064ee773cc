// Command demo shows what grafting does for ordinary programs: the same
// unmodified iperf3, sockperf and curl run as processes of the host, in a
// container behind address translation and in a grafted container, against
// iperf3, sockperf and nginx on a remote host.
//
// It owns how these programs are called and what is read from their output,
// and takes about a minute. It needs what bench/modes needs, and the programs.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/bench/modes"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	dir, err := os.MkdirTemp("", "tsugiki-demo-")
	if err != nil {
		fmt.Fprintf(stderr, "demo: make folder for nginx: %v\n", err)
		return 1
	}
	defer os.RemoveAll(dir)

	// One second each is what sockperf can at least; it takes two more to
	// begin. Two rounds of everything take a minute.
	session := &modes.Session{Figure: "demo", Rounds: 2, Duration: time.Second, Modes: []modes.Mode{modes.Host, modes.NAT, modes.Auto}}
	program := modes.Program{
		Session: session,
		Flags:   flag.NewFlagSet("demo", flag.ContinueOnError),
		Check:   func() error { return nil },
		Loads: func(_ context.Context, r *modes.Runner) ([]modes.Load, error) {
			if err := testkit.Programs("iperf3", "sockperf", "nginx", "curl"); err != nil {
				return nil, err
			}
			return []modes.Load{
				iperf(r, session.Duration),
				sockperf(r, "tcp", session.Duration),
				sockperf(r, "udp", session.Duration),
				web(r, dir, session.Modes),
			}, nil
		},
		Notes: func(*measure.Report) {},
		Print: func(report *measure.Report, w io.Writer) error {
			fmt.Fprintf(w, "\n%s\n", report.Machine)
			fmt.Fprintf(w, "The same programs, unmodified: a process of the host, a container behind NAT, a grafted\n"+
				"container. Medians of %d rounds; in parentheses relative to the host in the same round.\n\n", report.Rounds)
			return report.WriteBrief(w, modes.Names(session.Modes))
		},
	}
	return program.Main(args, stdout, stderr)
}
