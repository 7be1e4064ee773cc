package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/api"
)

// delayMin is the shortest time between two tables, in seconds.
const delayMin = 0.1

// silentMark follows the name of a container with a gate that does not answer.
const silentMark = "*"

type topFlags struct {
	socket string
	output output
	count  int
	delay  float64
}

func topCommand() *cobra.Command {
	var f topFlags
	cmd := &cobra.Command{
		Use:   "top [-n N] [-d SECONDS] | -o json|yaml",
		Short: "Show the activity of the agent's containers, the busiest first",
		Long: `Top prints a table of the agent's containers every few seconds. On a terminal, each table
replaces the previous one, until you press q or Ctrl-C. Counts per second:
  OUT, IN      TCP connections that host sockets established, outgoing and incoming
  GATE, AGENT  trapped calls that the gate, or the agent, answered
  DENIED       calls that the kernel refused
  MISSES       sockets that a program had to wait for, because its pool was empty
P50 and P99 are the median and the 99th percentile of the answer times. MEMORY is the
memory of the container's helper processes. "*" after a name means that a gate of the
container does not report its counts. Calls that the preloaded library, or the kernel
programs alone, decide are not trapped, and not in these columns.

-o json and -o yaml print the counts since the start of the containers once, as
GET /v1/stats of the agent returns them.`,
		Example: `  tsugiki top
  tsugiki top -n 1 -d 10`,
		DisableFlagsInUseLine: true,
		Args:                  noArguments("top"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.count < 0 || f.delay < delayMin {
				return usageError{fmt.Errorf("top: -n must be at least 0 and -d at least %v seconds", delayMin)}
			}
			if err := f.run(cmd.OutOrStdout()); err != nil {
				return fmt.Errorf("top: %w", err)
			}
			return nil
		},
	}
	addAgentFlag(cmd, &f.socket)
	f.output.register(cmd, formatJSON, formatYAML)
	flags := cmd.Flags()
	flags.IntVarP(&f.count, "count", "n", 0, "end after this number of tables (default never)")
	flags.Float64VarP(&f.delay, "delay", "d", 2, "seconds between two tables, at least 0.1")
	return cmd
}

func (f *topFlags) run(out io.Writer) error {
	client := api.Dial(f.socket)
	before, err := client.Stats()
	if err != nil {
		return err
	}
	if !f.output.isTable() {
		return f.output.write(out, before, nil)
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	s := openScreen(out, os.Stdin, stop)
	err = f.show(ctx, client, before, s)
	return errors.Join(orInterrupted(ctx, err), s.close())
}

func (f *topFlags) show(ctx context.Context, client *api.Client, before api.Stats, s *screen) error {
	tick := time.NewTicker(time.Duration(f.delay * float64(time.Second)))
	defer tick.Stop()
	for shown := 0; f.count == 0 || shown < f.count; shown++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		after, err := client.Stats()
		if err != nil {
			return err
		}
		rates, err := api.Rates(&before, &after)
		if err != nil {
			return err
		}
		if err := s.show(table(rates)); err != nil {
			return err
		}
		before = after
	}
	return nil
}

func table(rates []api.Rate) []byte {
	name := len("NAME")
	for _, r := range rates {
		name = max(name, len(r.Name)+len(silentMark))
	}
	const row = "%-*s  %8s  %8s  %8s  %8s  %6s  %6s  %8s  %8s  %7s\n"
	b := fmt.Appendf(nil, row, name, "NAME", "OUT", "IN", "GATE", "AGENT", "P50", "P99", "DENIED", "MISSES", "MEMORY")
	for _, r := range rates {
		if r.Silent > 0 {
			r.Name += silentMark
		}
		b = fmt.Appendf(b, row, name, r.Name, per(r.Out), per(r.In), per(r.Gate), per(r.Agent),
			short(r.P50), short(r.P99), per(r.Denied), per(r.Misses), fmt.Sprintf("%dK", r.Memory>>10))
	}
	return b
}

func per(rate float64) string { return fmt.Sprintf("%.1f", rate) }

// short shows a duration with three digits.
func short(d time.Duration) string {
	switch {
	case d == 0:
		return "-"
	case d < time.Millisecond:
		return fmt.Sprintf("%.3gus", float64(d)/float64(time.Microsecond))
	case d < time.Second:
		return fmt.Sprintf("%.3gms", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%.3gs", d.Seconds())
}
