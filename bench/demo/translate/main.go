// Command translate shows what tsugiki run --translate does, on a host and a remote without IPv4: what
// curl and a program in Python see that know IPv4 only, what is on the host's link meanwhile, and the ways
// of an IPv4 program to an IPv6 host in one table.
//
// It owns these programs, the capture, and which rows the table has. It takes less than a minute, and needs
// what bench/drive needs with the modes of a host without IPv4, curl and python3.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/tsugiki/tsugiki/bench/drive"
	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/bench/modes"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// rows are what the table has of each test of netdrive: the protocol, and the metrics by netdrive's names.
var rows = map[string]struct {
	protocol string
	metrics  map[string]string
}{
	"tcp_stream": {"TCP", map[string]string{"throughput": "throughput", "cpu_machine": "CPU of the machine"}},
	"tcp_rr":     {"TCP", map[string]string{"p50": "round trip p50", "p99": "round trip p99"}},
	"tcp_crr":    {"TCP", map[string]string{"rate": "new connections"}},
	"udp_rr":     {"UDP", map[string]string{"p50": "round trip p50"}},
}

// firstPort is the remote's port of the first row and mode.
const firstPort = 20000

// warmup is the time before a measurement that does not count.
const warmup = 50 * time.Millisecond

func run(args []string, stdout, stderr io.Writer) int {
	began := time.Now()
	dir, err := os.MkdirTemp("", "tsugiki-demo-")
	if err != nil {
		fmt.Fprintf(stderr, "demo-translate: make folder for the driver: %v\n", err)
		return 1
	}
	defer os.RemoveAll(dir)

	session := &modes.Session{
		Figure: modes.Translate, Rounds: 2, Duration: 400 * time.Millisecond,
		Modes: []modes.Mode{modes.IPv4, modes.IPv6, modes.Translated, modes.TranslatedSeccomp, modes.Tayga, modes.HAProxy},
	}
	var seen *views
	var columns []string
	program := modes.Program{
		Session: session,
		Flags:   flag.NewFlagSet("demo-translate", flag.ContinueOnError),
		Check:   func() error { return nil },
		Loads: func(ctx context.Context, r *modes.Runner) (loads []modes.Load, err error) {
			columns = modes.Names(r.Modes())
			if seen, err = look(ctx, r); err != nil {
				return nil, err
			}
			d := &drive.Driver{Runner: r, Modes: session.Modes, Duration: session.Duration, Warmup: warmup}
			if err := d.Build(ctx, dir); err != nil {
				return nil, err
			}
			for _, t := range drive.Tests {
				if row, ok := rows[t.Name]; ok {
					load := d.Load(t, firstPort+uint16(len(loads)*len(session.Modes)))
					loads = append(loads, only(load, row.protocol, row.metrics))
				}
			}
			return loads, nil
		},
		Notes: func(*measure.Report) {},
		Print: func(report *measure.Report, w io.Writer) error {
			fmt.Fprintf(w, "\n%s\n", report.Machine)
			if err := seen.write(w); err != nil {
				return err
			}
			fmt.Fprintf(w, "\nThe ways of a program that knows IPv4 only to an IPv6 server: translated, by tayga, by haproxy; beside client\n"+
				"and server with IPv4, and with IPv6. Medians of %d rounds; in parentheses relative to IPv6 in the same round.\n\n", report.Rounds)
			if err := report.WriteBrief(w, columns); err != nil {
				return err
			}
			for _, note := range report.Notes {
				fmt.Fprintf(w, "note: %s\n", note)
			}
			fmt.Fprintf(w, "\nThis took %.0f s.\n", time.Since(began).Seconds())
			return nil
		},
	}
	return program.Main(args, stdout, stderr)
}

// only leaves of a load what the table has, under these names.
func only(l modes.Load, name string, metrics map[string]string) modes.Load {
	inner := l.Run
	l.Name = name
	l.Run = func(ctx context.Context, m modes.Mode, add drive.Add) error {
		return inner(ctx, m, func(metric measure.Metric, value float64) {
			if metric.Name = metrics[metric.Name]; metric.Name != "" {
				add(metric, value)
			}
		})
	}
	return l
}
