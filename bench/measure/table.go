package measure

import (
	"fmt"
	"io"
	"slices"
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
	for i, res := range r.Results {
		test, metric, cpus := res.Test, res.Metric+" "+res.Unit, "any"
		if res.CPUs != nil {
			cpus = fmt.Sprintf("%d,%d", res.CPUs.Client, res.CPUs.Server)
		}
		if i > 0 && sameMetric(res, r.Results[i-1]) {
			test, metric, cpus = "", "", ""
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

// WriteBrief writes one line per metric that some of the modes have: the median
// in every mode and, in parentheses, that of the ratios to the base mode.
func (r *Report) WriteBrief(w io.Writer, modes []string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\t\t%s\n", strings.Join(modes, "\t"))
	for i, res := range r.Results {
		if i > 0 && sameMetric(res, r.Results[i-1]) || !slices.Contains(modes, res.Mode) {
			continue // Finish has put modes before others
		}
		fmt.Fprintf(t, "%s %s\t%s", res.Test, res.Metric, res.Unit)
		for _, mode := range modes {
			fmt.Fprintf(t, "\t%s", brief(r.Results[i:], res, mode))
		}
		fmt.Fprintln(t)
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

// brief is the cell of a mode in the line of the metric of like.
func brief(results []*Result, like *Result, mode string) string {
	for _, res := range results {
		switch {
		case res.Mode != mode || !sameMetric(res, like):
		case res.RatioToHost == nil:
			return number(res.Summary.Median)
		default:
			return fmt.Sprintf("%s (%.2f)", number(res.Summary.Median), res.RatioToHost.Median)
		}
	}
	return "-"
}

func sameMetric(a, b *Result) bool { return a.Test == b.Test && a.Metric == b.Metric }

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
