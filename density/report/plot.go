package report

import (
	"fmt"
	"slices"

	"github.com/tsugiki/tsugiki/density/result"
)

// sheet is the paper of a plot.
type sheet struct {
	class                    string
	width, height            float64
	left, right, top, bottom float64
	radius                   float64 // of markers
	letter                   float64 // width of a letter, on average
}

var (
	// A plot is drawn twice: letters that are readable on a desk are not when
	// the picture is shrunk to a telephone. The style shows one of them.
	wideSheet   = sheet{class: "plot wide", width: 860, height: 380, left: 58, right: 22, top: 44, bottom: 46, radius: 4.5, letter: 7}
	narrowSheet = sheet{class: "plot narrow", width: 360, height: 290, left: 46, right: 14, top: 44, bottom: 44, radius: 4, letter: 7}
	smallSheet  = sheet{class: "plot small", width: 270, height: 150, left: 42, right: 10, top: 12, bottom: 24, radius: 2.6, letter: 6.4}
)

// line is one series as it is drawn.
type line struct {
	name   string
	hue    int
	points []*result.Point
	knee   float64
}

// plot draws lines over a numeric axis.
type plot struct {
	*drawing
	sheet
	figure *result.Figure
	lines  []line
	x, y   *scale
}

// drawLines is a plot of lines with their bands and knees.
func drawLines(f *result.Figure, lines []line, on sheet) string {
	p := &plot{
		drawing: newDrawing(on.class, on.width, on.height, f.Title, f.Finding),
		sheet:   on, figure: f, lines: lines,
	}
	p.scales()
	p.grid()
	for _, l := range lines {
		p.band(l)
	}
	p.knees()
	for _, l := range lines {
		p.stroke(l)
	}
	for _, l := range lines {
		p.markers(l)
	}
	return p.close()
}

func (p *plot) scales() {
	var xs, ys []float64
	for _, l := range p.lines {
		for _, point := range l.points {
			xs = append(xs, point.X)
			ys = append(ys, point.Median)
			if point.HasInterval() {
				ys = append(ys, point.Low, point.High)
			}
		}
	}
	inner := p.width - p.left - p.right
	p.x = newScale(xs, p.figure.X.Log, p.left, inner, int(inner/60))
	if p.x.log {
		p.x.measured(xs, p.letter)
	}
	tall := p.height - p.top - p.bottom
	p.y = newScale(ys, p.figure.Y.Log, p.height-p.bottom, -tall, int(tall/44))
}

func (p *plot) grid() {
	bottom := p.height - p.bottom
	for _, t := range p.y.ticks {
		y := p.y.pixel(t.value)
		p.line("grid", p.left, y, p.width-p.right, y)
		p.text("tick", "end", p.left-8, y+4, t.label)
	}
	p.line("axis", p.left, bottom, p.width-p.right, bottom)
	for _, t := range p.x.ticks {
		x := p.x.pixel(t.value)
		p.line("axis", x, bottom, x, bottom+4)
		p.text("tick", "middle", x, bottom+17, t.label)
	}
	if p.class == smallSheet.class {
		return
	}
	p.text("label", "start", 2, 14, fit(axisLabel(p.figure.Y), p.width, p.letter))
	p.text("label", "middle", (p.left+p.width-p.right)/2, p.height-6, fit(axisLabel(p.figure.X), p.width, p.letter))
}

func axisLabel(a result.Axis) string {
	text := a.Label
	if a.Unit != "" && a.Unit != a.Label {
		text += ", " + a.Unit
	}
	if a.Better != "" {
		text += " (" + a.Better + " is better)"
	}
	return text
}

// banded says whether a point is part of a band; all others with an interval
// have a whisker.
func banded(points []*result.Point, i int) bool {
	trusted := func(i int) bool {
		return i >= 0 && i < len(points) && points[i].HasInterval() && !points[i].Wide
	}
	return trusted(i) && (trusted(i-1) || trusted(i+1))
}

func (p *plot) band(l line) {
	class := fmt.Sprintf("band hue%d", l.hue)
	var upper, lower []position
	flush := func() {
		if len(upper) > 0 {
			slices.Reverse(lower)
			p.path(class, append(upper, lower...), true)
		}
		upper, lower = nil, nil
	}
	for i, point := range l.points {
		if !banded(l.points, i) {
			flush()
			continue
		}
		x := p.x.pixel(point.X)
		upper = append(upper, position{x, p.y.pixel(point.High)})
		lower = append(lower, position{x, p.y.pixel(point.Low)})
	}
	flush()
}

// stroke joins the medians; where one of two is not to be trusted, by dots.
func (p *plot) stroke(l line) {
	var last *result.Point
	for _, point := range l.points {
		if len(point.Samples) == 0 {
			continue
		}
		if last != nil {
			class := "stroke"
			if last.Wide || point.Wide {
				class = "stroke doubtful"
			}
			p.line(fmt.Sprintf("%s hue%d", class, l.hue),
				p.x.pixel(last.X), p.y.pixel(last.Median), p.x.pixel(point.X), p.y.pixel(point.Median))
		}
		last = point
	}
}

func (p *plot) markers(l line) {
	for i, point := range l.points {
		if len(point.Samples) == 0 {
			continue
		}
		x, y := p.x.pixel(point.X), p.y.pixel(point.Median)
		p.open(fmt.Sprintf("point hue%d", l.hue))
		p.hint(l.name + " at " + place(point) + ": " + value(point, p.figure.Y.Unit))
		if point.HasInterval() && !banded(l.points, i) {
			p.line("whisker", x, p.y.pixel(point.Low), x, p.y.pixel(point.High))
		}
		if l.knee > 0 && point.X == l.knee {
			p.marker("ring", l.hue, x, y, p.radius*2.1)
		}
		class := "marker"
		if point.Wide {
			class = "marker hollow"
		}
		p.marker(class, l.hue, x, y, p.radius)
		p.end()
	}
}

// knees are lines across the plot, with their place written above, in as many
// rows as it takes for none to cover another.
func (p *plot) knees() {
	var at []float64
	for _, l := range p.lines {
		if l.knee > 0 {
			at = append(at, l.knee)
		}
	}
	at = slices.Compact(slices.Sorted(slices.Values(at)))
	const rows = 2
	var used [rows]float64
	for _, knee := range at {
		x := p.x.pixel(knee)
		p.line("knee", x, p.top-6, x, p.height-p.bottom)
		text := "knee at " + short(knee)
		width := p.letter * float64(len(text)) * 0.95
		from := min(max(x-width/2, 2), p.width-width-2)
		row := slices.IndexFunc(used[:], func(end float64) bool { return end <= from })
		if row < 0 {
			continue // the legend has it too
		}
		used[row] = from + width + 8
		p.text("kneelabel", "start", from, p.top-9-float64(row)*13, text)
	}
}
