package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/tsugiki/tsugiki/bench/measure"
)

// writeTable writes a line for each figure, with its range over the rounds.
func writeTable(r *measure.Report, w io.Writer) error {
	fmt.Fprintf(w, "%s: %s\n%s\n\n", r.Figure, strings.Join(r.Command, " "), r.Machine)
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	test := ""
	for _, res := range r.Results {
		shown := res.Test
		if shown == test {
			shown = ""
		}
		test = res.Test
		spread := ""
		if s := res.Summary; len(res.Values) > 1 {
			spread = fmt.Sprintf("[%.4g..%.4g]", s.Min, s.Max)
		}
		fmt.Fprintf(out, "%s\t%s\t%s\t%.4g\t%s\t%s\n", shown, res.Metric, res.Mode, res.Summary.Median, spread, res.Unit)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(w, "note: %s\n", n)
	}
	return nil
}
