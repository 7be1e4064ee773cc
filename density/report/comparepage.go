package report

import (
	"bytes"
	"fmt"
	"html/template"
	"slices"
	"strings"

	"github.com/tsugiki/tsugiki/density/result"
)

// comparePage is the data of compare.html.
type comparePage struct {
	Head         head
	Counts       string
	Studies      []study
	Differ, Only []string
	Facts        []fact // the same in both sweeps
	HowToRead    []string
	Figures      []comparedFigure
}

type study struct{ Name, When, Command, Incomplete string }

type comparedFigure struct {
	Number                int
	ID, Title, Counts, At string
	Before, After         []string // findings
	Legend                []legend
	Plots                 []template.HTML
	Rows                  []comparedRow
}

type comparedRow struct{ Series, At, Before, After, Ratio, Verdict string }

var howToCompare = []string{
	"A ratio is the second study's median divided by the first one's: 2 is twice as much.",
	"Its bounds are those of both intervals at their worst. Where 1 is between them the intervals overlap, and the point is not significantly different: it may be the same.",
	"Nothing is said where a study has fewer than three runs of a point, or where these differ by more than half of their median.",
	"With many points, some differ by chance. A difference of one point only, next to others without, is to be measured again.",
}

// ComparisonHTML returns the page of a comparison.
func ComparisonHTML(before, after *result.Results) ([]byte, error) {
	c := Compare(before, after)
	p := comparePage{
		Head: newHead("Container density: two studies compared"), Counts: c.Counts(), Differ: c.Differ, Only: c.Only,
		Studies: []study{newStudy("Before", before), newStudy("After", after)}, HowToRead: howToCompare,
	}
	had := append(facts(before), options(before)...)
	for _, f := range append(facts(after), options(after)...) {
		if slices.Contains(had, f) {
			p.Facts = append(p.Facts, f)
		}
	}
	for _, f := range before.Figures {
		if of := c.of(f); len(of.Differences) > 0 {
			p.Figures = append(p.Figures, compareFigure(len(p.Figures)+1, f, after.Figure(f.Name), of))
		}
	}
	var out bytes.Buffer
	if err := compares().Execute(&out, p); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func newStudy(name string, r *result.Results) study {
	return study{
		Name: name, When: r.Started.UTC().Format(dateLayout) + ", in " + duration(r.Ended.Sub(r.Started)),
		Command: commandLine(r.Command), Incomplete: r.Incomplete,
	}
}

// of returns the comparison of one figure.
func (c *Comparison) of(f *result.Figure) *Comparison {
	one := &Comparison{}
	for _, d := range c.Differences {
		if d.Figure == f.Name {
			one.Differences = append(one.Differences, d)
		}
	}
	return one
}

func compareFigure(number int, before, after *result.Figure, c *Comparison) comparedFigure {
	v := comparedFigure{
		Number: number, ID: fmt.Sprintf("figure-%d", number), Title: before.Title, Counts: c.Counts(), At: before.X.Label,
		Before: strings.Split(before.Finding, "\n"), After: strings.Split(after.Finding, "\n"),
	}
	for _, verdict := range verdicts {
		if slices.ContainsFunc(c.Differences, func(d Difference) bool { return d.Verdict == verdict.name }) {
			v.Legend = append(v.Legend, verdict.legend())
		}
	}
	if slices.ContainsFunc(c.Differences, func(d Difference) bool { return d.Ratio > 0 }) {
		v.Plots = []template.HTML{template.HTML(drawRatios(before, c, wideSheet)), template.HTML(drawRatios(before, c, narrowSheet))}
	}
	for _, d := range c.Differences {
		v.Rows = append(v.Rows, comparedRow{d.Series, d.At, value(d.Before, d.Unit), value(d.After, d.Unit), d.ratioText(), d.Verdict})
	}
	return v
}

// look returns the marker of a verdict. Verdicts differ by shape as well as by colour.
type look struct {
	name       string
	hue, shape int
	hollow     bool
}

var verdicts = []look{
	{Better, 2, 2, false}, {Worse, 1, 4, false}, {More, 0, 2, false}, {Less, 0, 4, false}, {Same, 6, 0, false}, {Unknown, 6, 0, true},
}

func (l look) class() string {
	if l.hollow {
		return "marker hollow"
	}
	return "marker"
}

func (l look) legend() legend {
	d := &drawing{}
	fmt.Fprintf(d, `<svg class="key point hue%d" viewBox="-14 -8 28 16" aria-hidden="true">`, l.hue)
	d.marker(l.class(), l.shape, 0, 0, 5)
	return legend{Marker: template.HTML(d.close()), Name: l.name}
}

const ratioRow = 22.0

// drawRatios draws a row for each point: its ratio with the bounds, and the line that means no
// change.
func drawRatios(f *result.Figure, c *Comparison, on sheet) string {
	var values []float64
	names, series := 0.0, 0
	last := ""
	for _, d := range c.Differences {
		if d.Series != last {
			last, series = d.Series, series+1
		}
		names = max(names, textWidth(d.At, on.font)+16)
		if d.Ratio > 0 {
			values = append(values, d.Ratio)
		}
		if d.Low > 0 {
			values = append(values, d.Low, d.High)
		}
	}
	left := min(names, on.width/2)
	label := on.label(result.Axis{Label: "ratio, after to before", Log: true, Better: f.Y.Better})
	top := 18 + labelLine*float64(len(label))
	height := top + ratioRow*float64(len(c.Differences)) + groupHead*float64(series) + 30
	d := newDrawing(on.class, on.width, height, f.Title+", compared", c.Counts())
	d.labels(label)
	x := newScale(append(values, 1), true, left, on.width-left-on.right, int((on.width-left-on.right)/50))
	for _, t := range x.ticks {
		d.line("grid", x.pixel(t.value), top-6, x.pixel(t.value), height-26)
		d.tick(x.pixel(t.value), height-8, on.width, on.font, t.label)
	}
	d.line("one", x.pixel(1), top-6, x.pixel(1), height-26)
	y := top
	last = ""
	for _, one := range c.Differences {
		if one.Series != last {
			last = one.Series
			d.text("group", "start", 2, y+13, fit(one.Series, on.width, on.font*bold))
			y += groupHead
		}
		d.text("tick", "end", left-12, y+ratioRow/2+4, fit(one.At, left-12, on.font))
		drawRatio(d, one, x, y+ratioRow/2, on.radius)
		y += ratioRow
	}
	return d.close()
}

func drawRatio(d *drawing, one Difference, x *scale, y, radius float64) {
	if one.Ratio <= 0 {
		return
	}
	l := verdicts[slices.IndexFunc(verdicts, func(l look) bool { return l.name == one.Verdict })]
	d.open(fmt.Sprintf("point hue%d", l.hue))
	d.hint(one.Series + " at " + one.At + ": " + one.ratioText() + ", " + one.Verdict)
	if one.Low > 0 {
		d.line("whisker", x.pixel(one.Low), y, x.pixel(one.High), y)
	}
	d.marker(l.class(), l.shape, x.pixel(one.Ratio), y, radius)
	d.end()
}
