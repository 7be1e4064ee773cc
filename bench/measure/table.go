package measure

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// WriteTable writes the report for people: one line per metric and mode, with
// the spread over the rounds behind each median.
func (r *Report) WriteTable(w io.Writer) error {
	fmt.Fprintf(w, "%s: %s\n", r.Figure, strings.Join(r.Command, " "))
	fmt.Fprintf(w, "%s\n", r.Machine)
	fmt.Fprintf(w, "%d rounds of %gs, modes in random order (seed %d)\n", r.Rounds, r.DurationS, r.Seed)
	fmt.Fprintf(w, "ratios are to %s in the same round; cpus are those of client and server\n\n", r.Base)

	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "test\tcpus\tmetric\tmode\tmedian\tspread\tiqr\tratio\tspread\tiqr")
	last := ""
	for _, res := range r.Results {
		test, metric, cpus := res.Test, res.Metric+" "+res.Unit, "any"
		if res.CPUs != nil {
			cpus = fmt.Sprintf("%d,%d", res.CPUs.Client, res.CPUs.Server)
		}
		if last == test+metric {
			test, metric, cpus = "", "", ""
		} else {
			last = test + metric
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s", test, cpus, metric, res.Mode, cells(res.Summary))
		if res.RatioToHost != nil {
			fmt.Fprintf(t, "\t%s", cells(*res.RatioToHost))
		}
		fmt.Fprintln(t)
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(w, "note: %s\n", n)
	}
	return nil
}

// cells are the three columns of a summary.
func cells(s Summary) string {
	return fmt.Sprintf("%s\t[%s..%s]\t%s", number(s.Median), number(s.Min), number(s.Max), number(s.IQR()))
}

// number prints three significant digits, of large numbers all before the
// point.
func number(v float64) string {
	switch abs := max(v, -v); {
	case abs >= 100:
		return fmt.Sprintf("%.0f", v)
	case abs >= 10:
		return fmt.Sprintf("%.1f", v)
	case abs >= 1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3f", v)
}
