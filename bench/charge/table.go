package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/tsugiki/tsugiki/bench/measure"
)

// tables prints the paper's tables beside its own figures.
type tables struct {
	*options
	report *measure.Report
	out    *tabwriter.Writer
}

// writeTables prints what was measured, as far as it was.
func (o *options) writeTables(r *measure.Report, w io.Writer) error {
	fmt.Fprintf(w, "%s\n%s\n%d rounds of %gs, in random order (seed %d); medians [from..to], paper: the paper's figure\n",
		strings.Join(r.Command, " "), r.Machine, r.Rounds, r.DurationS, r.Seed)
	t := &tables{o, r, tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	for _, figure := range o.figures {
		switch figure {
		case "accuracy":
			t.accuracy()
		case "isolation":
			t.isolation()
		default:
			t.plain(figure)
		}
	}
	if err := t.out.Flush(); err != nil {
		return fmt.Errorf("write tables: %w", err)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(w, "note: %s\n", n)
	}
	return nil
}

func (t *tables) title(format string, args ...any) {
	t.out.Flush() // columns of another table; an error comes again at the end
	fmt.Fprintf(t.out, "\n"+format+"\n", args...)
	t.out.Flush()
}

func (t *tables) row(cells ...string) { fmt.Fprintln(t.out, strings.Join(cells, "\t")) }

// find finds the result of a variant; nil if it was not measured.
func find(r *measure.Report, test, metric, variant string) *measure.Result {
	for _, res := range r.Results {
		if res.Test == test && res.Metric == metric && res.Mode == variant {
			return res
		}
	}
	return nil
}

// cell prints a value with its spread.
func (t *tables) cell(format, test, metric, variant string) string {
	found := find(t.report, test, metric, variant)
	if found == nil {
		return "-"
	}
	s := found.Summary
	if t.rounds == 1 {
		return fmt.Sprintf(format, s.Median)
	}
	return fmt.Sprintf(format+" ["+format+".."+format+"]", s.Median, s.Min, s.Max)
}

// paper prints a figure of the paper.
func paper(format string, value float64, known bool) string {
	if !known {
		return "-"
	}
	return fmt.Sprintf(format, value)
}

func (t *tables) accuracy() {
	if slices.ContainsFunc(t.variants, func(v variant) bool { return !v.agent }) {
		t.title("Table 2: logger's CPU without charging, %%")
		head := []string{"quota"}
		for _, c := range t.commands {
			head = append(head, c.name, "paper ("+c.paper+")")
		}
		t.row(head...)
		for _, q := range t.quotas {
			row := []string{q.String()}
			for _, c := range t.commands {
				p, known := paperLogger[q][c.name]
				row = append(row, t.cell("%.2f", accuracyTest(c, q), "logger", "off"), paper("%.2f", p, known))
			}
			t.row(row...)
		}
	}
	for i, c := range commands {
		for _, v := range t.variants {
			if v.agent && slices.Contains(t.commands, c) {
				t.accuracyOf(5+i, c, v)
			}
		}
	}
}

// accuracyOf is a table with charging.
func (t *tables) accuracyOf(number int, c command, v variant) {
	t.title("Table %d: %s, %s, %%", number, c.name, v.name)
	t.row("quota", "A logger", "paper", "B charged", "paper", "C container", "paper", "B + C", "paper", "A - B", "paper", "A + C")
	for _, q := range t.quotas {
		test := accuracyTest(c, q)
		p, known := paperAccuracy[c.name][q]
		t.row(q.String(),
			t.cell("%.2f", test, "logger", v.name), paper("%.2f", p[0], known),
			t.cell("%.2f", test, "charged", v.name), paper("%.2f", p[1], known),
			t.cell("%.2f", test, "container", v.name), paper("%.2f", p[2], known),
			t.cell("%.2f", test, "charged_sum", v.name), paper("%.2f", p[1]+p[2], known),
			t.cell("%.2f", test, "uncharged", v.name), paper("%.2f", p[0]-p[1], known),
			t.cell("%.2f", test, "sum", v.name))
	}
}

func (t *tables) isolation() {
	for _, v := range t.variants {
		events, ratios := 3, 4
		if v.agent {
			events, ratios = 8, 9
		}
		t.title("Table %d: sysbench beside others, %s, events/s", events, v.name)
		t.events(v)
		t.title("Table %d: the same, %s, ratio to dd: by events; by CPU time", ratios, v.name)
		t.ratios(v)
	}
}

func (t *tables) events(v variant) {
	list := append([]command{baseline}, t.commands...)
	head := []string{"N"}
	for _, c := range list {
		head = append(head, c.name)
		if !v.agent {
			head = append(head, "paper ("+c.paper+")")
		}
	}
	t.row(head...)
	for _, n := range t.counts {
		row := []string{fmt.Sprint(n)}
		for _, c := range list {
			row = append(row, t.cell("%.1f", isolationTest(c, n), "events", v.name))
			if p, known := paperEvents[n][c.name]; !v.agent {
				row = append(row, paper("%.1f", p, known))
			}
		}
		t.row(row...)
	}
}

func (t *tables) ratios(v variant) {
	head := []string{"N"}
	for _, c := range t.commands {
		head = append(head, c.name+" events", "CPU", "paper ("+c.paper+")")
	}
	t.row(head...)
	for _, n := range t.counts {
		if n == 1 {
			continue
		}
		row := []string{fmt.Sprint(n)}
		for _, c := range t.commands {
			test := isolationTest(c, n)
			row = append(row, t.cell("%.3f", test, "events_to_dd", v.name), t.cell("%.3f", test, "share_to_dd", v.name))
			p, known := paperRatios[n][c.name]
			if v.agent {
				// All that its text says.
				p, known = paperCharged[c.name][0], n == 2
				if n == 5 {
					p, known = paperCharged[c.name][1], true
				}
			}
			row = append(row, paper("%.2f", p, known))
		}
		t.row(row...)
	}
}

// plain prints what the paper has not.
func (t *tables) plain(figure string) {
	t.title("%s", figure)
	head := []string{"", ""}
	for _, v := range t.variants {
		head = append(head, v.name)
	}
	t.row(head...)
	seen := make(map[string]bool)
	for _, res := range t.report.Results {
		key := res.Test + " " + res.Metric
		if !strings.HasPrefix(res.Test, figure) || seen[key] {
			continue
		}
		seen[key] = true
		row := []string{strings.TrimSpace(strings.TrimPrefix(res.Test, figure)), res.Metric + " " + res.Unit}
		for _, v := range t.variants {
			row = append(row, t.cell("%.2f", res.Test, res.Metric, v.name))
		}
		t.row(row...)
	}
}
