package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/tsugiki/tsugiki/api"
)

func chargeShow(socket *string) *cobra.Command {
	var o output
	var over time.Duration
	cmd := &cobra.Command{
		Use:   "show [--over DURATION] [-o FORMAT] [CONTAINER|CGROUP]",
		Short: "Show the accounts of containers that are charged",
		Long: `Show prints a line for each container that has an account:
  QUOTA      quota of the container, in percent of a CPU; after "->" the current quota,
             which the agent has lowered
  OWN        CPU time of the container itself, in percent of a CPU
  BORROWED   CPU time of other processes for the container, by source, in percent of a
             CPU; the kernel counts a source with "*" under the container's quota
  DEBT       CPU time that the agent has yet to subtract from the quota
  FORGIVEN   CPU time that was too much, and that the agent will not subtract
  HELD       how often the agent stopped the container for its debt, and for how long in
             total; "!" if the container is stopped now
  THROTTLED  periods in which the container used its whole quota, in percent
  PRESSURE   part of the last 10 seconds in which a task of the container waited for a
             CPU, in percent
Then it prints the helpers that were attached, and the processes that work for many
containers.

OWN, BORROWED and THROTTLED cover the time since the account was opened. With --over they
cover a DURATION that begins now.

-o json and -o yaml print all of this once, as GET /v1/charge of the agent returns it.
-o wide adds the container's cgroup.`,
		Example: `  tsugiki charge show
  tsugiki charge show --over 2s web-1`,
		DisableFlagsInUseLine: true,
		ValidArgsFunction:     completeCharged(socket),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usageError{errors.New("charge show: write tsugiki charge show [CONTAINER|CGROUP]")}
			}
			if over < 0 || (over > 0 && !o.isTable()) {
				return usageError{errors.New("charge show: --over must be more than 0, and cannot be used with -o json or yaml")}
			}
			if err := showCharges(cmd.OutOrStdout(), api.Dial(*socket), slices.Concat(args, []string{""})[0], over, &o); err != nil {
				return fmt.Errorf("charge show: %w", err)
			}
			return nil
		},
	}
	o.register(cmd, formatJSON, formatYAML, formatWide)
	cmd.Flags().DurationVar(&over, "over", 0, "measure for this long from now, as in 2s, and show that time only")
	return cmd
}

// showCharges prints all accounts, or the account of one container with its helpers.
func showCharges(out io.Writer, client *api.Client, one string, over time.Duration, o *output) error {
	before, err := charges(client, one)
	if err != nil {
		return err
	}
	if over == 0 || !o.isTable() {
		return o.write(out, before, func() error { return printCharges(out, nil, &before, o.wide()) })
	}
	time.Sleep(over)
	after, err := charges(client, one)
	if err != nil {
		return err
	}
	return printCharges(out, &before, &after, o.wide())
}

// charges asks the agent for all accounts, and keeps that of one container if one is not "".
func charges(client *api.Client, one string) (api.Charges, error) {
	all, err := client.Charges()
	if err != nil || one == "" {
		return all, err
	}
	all.Containers = slices.DeleteFunc(all.Containers, func(c api.Charged) bool {
		return c.Container != one && c.ID != one && c.Group != one
	})
	if len(all.Containers) == 0 {
		return all, fmt.Errorf("%s has no account: %w", one, api.ErrNotFound)
	}
	all.Helpers = slices.DeleteFunc(all.Helpers, func(h api.ChargeAttached) bool {
		return h.Container != all.Containers[0].Container
	})
	all.Shared = nil
	return all, nil
}

func printCharges(out io.Writer, before, after *api.Charges, wide bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	group := ""
	if wide {
		group = "\tCGROUP"
	}
	fmt.Fprintln(w, "CONTAINER\tQUOTA\tOWN\tBORROWED\tDEBT\tFORGIVEN\tHELD\tTHROTTLED\tPRESSURE"+group)
	for i := range after.Containers {
		c := &after.Containers[i]
		s, err := spent(before, after, c)
		if err != nil {
			return err
		}
		pressure := "-"
		if c.Pressure != nil {
			pressure = fmt.Sprintf("%.1f%%", c.Pressure.Some10)
		}
		if wide {
			group = "\t" + c.Group
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s%s\n", c.Container, quota(c), percent(s.own, s.of),
			borrowed(s.borrowed, s.of), micro(c.DebtUS), micro(c.ForgivenUS), held(c.Held), percent(s.throttled, s.periods), pressure, group)
	}
	if len(after.Helpers) > 0 {
		fmt.Fprintln(w, "\nID\tHELPER\tCONTAINER\tSOURCE\tBY")
	}
	for _, h := range after.Helpers {
		who := h.Helper.Group
		if who == "" {
			who = fmt.Sprint(h.Helper.PID)
		}
		by := h.By
		if h.Reason != "" {
			by += ": " + h.Reason
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", h.ID, who, h.Container, h.Source, by)
	}
	if len(after.Shared) > 0 {
		fmt.Fprintln(w, "\nSHARED\tPROCESS\tSPENT\tFOR NO CONTAINER")
	}
	for _, p := range after.Shared {
		fmt.Fprintf(w, "%d\t%q\t%s\t%s\n", p.PID, p.Comm, micro(p.US), percent(p.UnownedUS, p.US))
	}
	return w.Flush()
}

// spending is CPU time spent during a time span, both in microseconds.
type spending struct {
	of, own            int64
	borrowed           []api.Borrowed
	throttled, periods int64
}

// spent returns what a container has spent between two answers. Without the answer before, or
// if the account is newer than that answer, the time begins with the account.
func spent(before, after *api.Charges, c *api.Charged) (spending, error) {
	var old api.Charged
	begin := c.Since
	if before != nil {
		for i := range before.Containers {
			if b := &before.Containers[i]; b.Container == c.Container && b.Since == c.Since {
				old, begin = *b, before.Time
			}
		}
	}
	from, err := time.Parse(time.RFC3339Nano, begin)
	if err != nil {
		return spending{}, fmt.Errorf("read the agent's answer: %w", err)
	}
	to, err := time.Parse(time.RFC3339Nano, after.Time)
	if err != nil {
		return spending{}, fmt.Errorf("read the agent's answer: %w", err)
	}
	s := spending{
		of: to.Sub(from).Microseconds(), own: c.OwnUS - old.OwnUS, borrowed: slices.Clone(c.Borrowed),
		throttled: int64(c.Throttled.Throttled - old.Throttled.Throttled), periods: int64(c.Throttled.Periods - old.Throttled.Periods),
	}
	for i := range s.borrowed {
		for _, b := range old.Borrowed {
			if b.Source == s.borrowed[i].Source && b.By == s.borrowed[i].By {
				s.borrowed[i].US -= b.US
			}
		}
	}
	return s, nil
}

// quota shows the quota of a container, and the lowered one; or why the agent does not lower it.
func quota(c *api.Charged) string {
	before := limited(c.Before)
	switch after := limited(c.After); {
	case c.Mode != "quota":
		return before + " (" + c.Mode + ")"
	case after != before:
		return before + " -> " + after
	}
	return before
}

func limited(l api.ChargeLimit) string {
	if l.QuotaUS < 0 {
		return "none"
	}
	return percent(l.QuotaUS, l.PeriodUS)
}

func borrowed(list []api.Borrowed, of int64) string {
	var parts []string
	for _, b := range list {
		part := b.Source + " " + percent(b.US, of)
		if b.By == api.ByPlace {
			part += "*"
		}
		parts = append(parts, part)
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ", ")
}

func held(h api.ChargeHeld) string {
	if h.Count == 0 && !h.Now {
		return "-"
	}
	text := fmt.Sprintf("%dx %s", h.Count, micro(h.TotalUS))
	if h.Now {
		text += " !"
	}
	return text
}

func percent(part, of int64) string {
	if of <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*float64(part)/float64(of))
}

// micro shows a number of microseconds.
func micro(us int64) string { return short(time.Duration(us) * time.Microsecond) }
