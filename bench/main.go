// Command bench measures Tsugiki's figures, side by side with a host process
// and a container behind address translation, and if asked for with pasta and slirp4netns;
// or programs that know IPv4 only on a host without IPv4, side by side with IPv6, tayga, haproxy and socat.
//
//	go run ./bench -figure graft -o graft.json
//	go run ./bench -figure translate -o translate.json
//
// It owns which tests a figure has; what is measured comes from netdrive
// (drive/), which it builds with the C compiler at each start. Modes take
// turns in random order and are compared within a round, because figures of a
// shared machine mean nothing by themselves. It needs what bench/modes needs,
// and musl-gcc or gcc with a static libc.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/tsugiki/tsugiki/bench/drive"
	"github.com/tsugiki/tsugiki/bench/modes"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == goClientCommand {
		if err := goClient(os.Args[2:], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// options are the flags that bench has beside those of every session.
type options struct {
	session modes.Session
	tests   string
	warmup  time.Duration
	size    int
}

func run(args []string, stdout, stderr io.Writer) int {
	dir, err := os.MkdirTemp("", "tsugiki-bench-")
	if err != nil {
		fmt.Fprintf(stderr, "bench: make folder for the driver: %v\n", err)
		return 1
	}
	defer os.RemoveAll(dir)

	o := &options{session: modes.Session{Rounds: 7}}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.StringVar(&o.session.Figure, "figure", "graft", "what to measure: graft, on a host with IPv4, or translate, programs that know IPv4 only on a host without it")
	f.DurationVar(&o.session.Duration, "duration", 1500*time.Millisecond, "time of one measurement")
	f.DurationVar(&o.warmup, "warmup", 200*time.Millisecond, "time before it that does not count")
	f.IntVar(&o.size, "size", 0, "bytes per message; 0 is 1 for round trips and 131072 for streams")
	f.StringVar(&o.tests, "tests", "", "tests to run; "+drive.InPrefix+"NAME has the server in the mode, and the client outside (graft: default "+
		strings.Join(graftTests(), ",")+", and "+strings.Join(inboundTCPTests(), ",")+"; translate: default "+strings.Join(translateTests(), ",")+")")
	fig := &figure{options: o, dir: dir}
	program := modes.Program{
		Session: &o.session,
		Flags:   f,
		Check:   o.check,
		Loads: func(ctx context.Context, r *modes.Runner) ([]modes.Load, error) {
			var err error
			if fig.self, err = os.Executable(); err != nil {
				return nil, err
			}
			fig.driver = &drive.Driver{
				Runner: r, Modes: o.session.Modes,
				Duration: o.session.Duration, Warmup: o.warmup, Size: o.size,
			}
			err = fig.driver.Build(ctx, dir)
			return fig.loads(), err
		},
		Notes: fig.note,
		Print: fig.print,
	}
	return program.Main(args, stdout, stderr)
}

// check refuses what cannot be run, and completes what was not given.
func (o *options) check() error {
	defaults, all := graftTests(), slices.Concat(graftTests(), inboundTCPTests())
	switch o.session.Figure {
	case "graft":
	case modes.Translate:
		defaults, all = translateTests(), translateTests()
	default:
		return fmt.Errorf("unknown figure %q, want graft or %s", o.session.Figure, modes.Translate)
	}
	if o.session.Duration <= 0 || o.warmup < 0 || o.size < 0 {
		return errors.New("duration must be positive, warmup and size not negative")
	}
	if o.tests == "" {
		o.tests = strings.Join(defaults, ",")
	}
	for name := range strings.SplitSeq(o.tests, ",") {
		if !slices.Contains(all, name) {
			return fmt.Errorf("unknown test %q, want some of %s", name, strings.Join(all, ","))
		}
	}
	return nil
}
