package report

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/tsugiki/tsugiki/density/result"
)

// The verdicts of a Difference.
const (
	Better  = "better"
	Worse   = "worse"
	More    = "more" // if neither direction is better
	Less    = "less"
	Same    = "not significantly different" // the intervals overlap
	Unknown = "cannot tell"                 // too few runs, or the interval is too wide
)

// Difference is the change of one point from one sweep to another.
type Difference struct {
	Figure string        `json:"figure"`
	Series string        `json:"series"`
	At     string        `json:"at"`
	Unit   string        `json:"unit"`
	Before *result.Point `json:"before"`
	After  *result.Point `json:"after"`
	// Ratio is the ratio of the medians, After to Before. Its bounds are the extreme ratios of the
	// two intervals, so that 1 lies between the bounds exactly if the intervals overlap. All are 0
	// if there is no ratio.
	Ratio   float64 `json:"ratio"`
	Low     float64 `json:"ratio_low"`
	High    float64 `json:"ratio_high"`
	Verdict string  `json:"verdict"`
}

// Comparison is the comparison of two sweeps.
type Comparison struct {
	// Differ lists the differences that make the sweeps hard to compare: machines, options.
	Differ []string `json:"differ"`
	// Only lists the figures and points that only one sweep has.
	Only        []string     `json:"only"`
	Differences []Difference `json:"differences"`
}

// Compare compares two sweeps. It does not change them.
func Compare(before, after *result.Results) *Comparison {
	c := &Comparison{Differ: []string{}, Only: []string{}, Differences: []Difference{}}
	a, b := append(facts(before), options(before)...), append(facts(after), options(after)...)
	c.differ(a, b)
	for _, f := range before.Figures {
		c.figure(f, after.Figure(f.Name))
	}
	for _, f := range after.Figures {
		if before.Figure(f.Name) == nil {
			c.Only = append(c.Only, f.Name+": only after")
		}
	}
	return c
}

// differ compares the conditions of the sweeps. The load is ignored, because it always differs.
func (c *Comparison) differ(before, after []fact) {
	is := make(map[string][2]string)
	for i, list := range [][]fact{before, after} {
		for _, f := range list {
			both := is[f.Name]
			both[i] = f.Value
			is[f.Name] = both
		}
	}
	for _, name := range slices.Sorted(maps.Keys(is)) {
		if both := is[name]; both[0] != both[1] && name != "Load before the run" {
			c.Differ = append(c.Differ, fmt.Sprintf("%s: %q, %q", name, both[0], both[1]))
		}
	}
}

func (c *Comparison) figure(before, after *result.Figure) {
	if after == nil {
		c.Only = append(c.Only, before.Name+": only before")
		return
	}
	had := points(before)
	has := points(after)
	for _, key := range slices.SortedFunc(maps.Keys(had), comparePlaces) {
		if has[key] == nil {
			c.Only = append(c.Only, fmt.Sprintf("%s, %s at %s: only before", before.Name, key.series, key.at()))
			continue
		}
		c.Differences = append(c.Differences, compare(before, key, had[key], has[key]))
	}
	for _, key := range slices.SortedFunc(maps.Keys(has), comparePlaces) {
		if had[key] == nil {
			c.Only = append(c.Only, fmt.Sprintf("%s, %s at %s: only after", before.Name, key.series, key.at()))
		}
	}
}

// where identifies a point in any sweep.
type where struct {
	series   string
	x        float64
	category string
	better   string
}

func (w where) at() string { return pointLabel(&result.Point{X: w.x, Category: w.category}) }

func comparePlaces(a, b where) int {
	switch {
	case a.series != b.series && a.series < b.series, a.series == b.series && a.x < b.x,
		a.series == b.series && a.x == b.x && a.category < b.category:
		return -1
	case a == b:
		return 0
	}
	return 1
}

func points(f *result.Figure) map[where]*result.Point {
	all := make(map[where]*result.Point)
	for _, s := range f.Series {
		better := s.Better
		if better == "" {
			better = f.Y.Better
		}
		for _, p := range s.Points {
			all[where{s.FullName(), p.X, p.Category, better}] = p
		}
	}
	return all
}

func compare(f *result.Figure, key where, before, after *result.Point) Difference {
	d := Difference{
		Figure: f.Name, Series: key.series, At: key.at(), Unit: f.Y.Unit,
		Before: before, After: after, Verdict: Unknown,
	}
	if len(before.Samples) == 0 || len(after.Samples) == 0 {
		return d
	}
	if before.Median != 0 {
		d.Ratio = after.Median / before.Median
	}
	if before.Low > 0 && after.Low >= 0 && before.HasInterval() && after.HasInterval() {
		d.Low, d.High = after.Low/before.High, after.High/before.Low
	}
	if before.Wide || after.Wide || !before.HasInterval() || !after.HasInterval() {
		return d
	}
	switch rises := after.Low > before.High; {
	case !rises && after.High >= before.Low:
		d.Verdict = Same
	case key.better == "":
		d.Verdict = map[bool]string{true: More, false: Less}[rises]
	case rises == (key.better == result.Higher):
		d.Verdict = Better
	default:
		d.Verdict = Worse
	}
	return d
}

// Counts returns the number of points for each verdict, in words.
func (c *Comparison) Counts() string {
	counts := make(map[string]int)
	for _, d := range c.Differences {
		counts[d.Verdict]++
	}
	var words []string
	for _, verdict := range []string{Better, Worse, More, Less, Same, Unknown} {
		if n := counts[verdict]; n > 0 {
			words = append(words, fmt.Sprintf("%d %s", n, verdict))
		}
	}
	if len(words) == 0 {
		return "The studies have no point in common."
	}
	return fmt.Sprintf("%s in both studies: %s.", count(len(c.Differences), "point"), strings.Join(words, ", "))
}

// ratioText formats the ratio with its bounds.
func (d *Difference) ratioText() string {
	switch {
	case d.Ratio == 0:
		return "–"
	case d.High == 0:
		return result.Number(d.Ratio)
	}
	return fmt.Sprintf("%s (%s to %s)", result.Number(d.Ratio), result.Number(d.Low), result.Number(d.High))
}

// Write prints the differences of the conditions, then a table, then the counts.
func (c *Comparison) Write(out io.Writer) error {
	for _, line := range c.Differ {
		fmt.Fprintf(out, "the sweeps differ in %s\n", printable(line))
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "FIGURE\tSERIES\tAT\tBEFORE\tAFTER\tRATIO\tVERDICT")
	for _, d := range c.Differences {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", printable(d.Figure), printable(d.Series), printable(d.At),
			printable(value(d.Before, d.Unit)), printable(value(d.After, d.Unit)), d.ratioText(), d.Verdict)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, line := range c.Only {
		fmt.Fprintln(out, printable(line))
	}
	_, err := fmt.Fprintln(out, c.Counts())
	return err
}
