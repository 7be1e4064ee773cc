package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/tsugiki/tsugiki/density/result"
)

// sheet has the sizes of a plot.
type sheet struct {
	class                    string
	width, height            float64
	left, right, top, bottom float64
	radius                   float64 // of markers
	font                     float64 // letter size; the style has the same
	// nameLeast is the number of lines from which their names are written beside their ends; 0:
	// never.
	nameLeast int
}

var (
	// A plot is drawn twice, for a desk and for a telephone: letters for a desk are unreadable on a
	// shrunk picture. The style shows one of the two.
	wideSheet   = sheet{class: "plot wide", width: 860, height: 388, left: 58, right: 22, top: 52, bottom: 46, radius: 4.5, font: plotFont, nameLeast: 2}
	narrowSheet = sheet{class: "plot narrow", width: 360, height: 298, left: 46, right: 14, top: 52, bottom: 44, radius: 4, font: plotFont}
	smallSheet  = sheet{class: "plot small", width: 270, height: 150, left: 44, right: 12, top: 12, bottom: 24, radius: 2.6, font: 12}
)

const plotFont = 13

// line is the look of one series.
type line struct {
	name   string
	hue    int
	shape  int // of the markers
	dash   int // of the stroke
	points []*result.Point
	knee   float64
	// reference tells that the values are known and were not measured. Such a line has no markers.
	reference bool
}

// dashes is the number of kinds of strokes in the style.
const dashes = 3

func (l line) stroke() string { return fmt.Sprintf("stroke hue%d dash%d", l.hue, l.dash) }

// plot draws lines with a numeric X axis.
type plot struct {
	*drawing
	sheet
	figure *result.Figure
	lines  []line
	x, y   *scale
}

// drawLines draws a plot of lines with their bands and knees.
func drawLines(f *result.Figure, lines []line, on sheet) string {
	p := newPlot(f, lines, on)
	p.drawing = newDrawing(on.class, p.width, p.height, f.Title, f.Finding)
	p.draw()
	return p.close()
}

// newPlot fits the sheet to the figure. The caller sets the drawing.
func newPlot(f *result.Figure, lines []line, on sheet) *plot {
	if on.class != smallSheet.class && len(on.label(f.Y)) > 1 {
		on.top += labelLine
		on.height += labelLine
	}
	p := &plot{sheet: on, figure: f, lines: lines}
	if p.named() {
		p.right = p.nameRoom()
	}
	return p
}

func (p *plot) draw() {
	p.scales()
	p.grid()
	for _, l := range p.lines {
		p.band(l)
	}
	p.knees()
	for _, l := range p.lines {
		p.stroke(l)
	}
	for _, l := range p.lines {
		if !l.reference {
			p.markers(l)
		}
	}
	p.names()
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
	tall := p.height - p.top - p.bottom
	p.y = newScale(ys, p.figure.Y.Log, p.height-p.bottom, -tall, int(tall/44))
	for _, t := range p.y.ticks {
		p.left = max(p.left, textWidth(t.label, p.font)+tickGap)
	}
	inner := p.width - p.left - p.right
	p.x = newScale(xs, p.figure.X.Log, p.left, inner, int(inner/60))
	if p.x.log {
		p.x.measured(xs, p.font*.63)
	}
}

// tickGap is between the labels of the y axis and the plot, in pixels.
const tickGap = 8

func (p *plot) grid() {
	bottom := p.height - p.bottom
	for _, t := range p.y.ticks {
		y := p.y.pixel(t.value)
		p.line("grid", p.left, y, p.width-p.right, y)
		p.text("tick", "end", p.left-tickGap, y+4, t.label)
	}
	p.line("axis", p.left, bottom, p.width-p.right, bottom)
	for _, t := range p.x.ticks {
		x := p.x.pixel(t.value)
		p.line("axis", x, bottom, x, bottom+4)
		p.tick(x, bottom+17, p.width, p.font, t.label)
	}
	if p.class == smallSheet.class {
		return
	}
	p.labels(p.label(p.figure.Y))
	x := strings.Join(axisLabel(p.figure.X), " ")
	p.text("label", "middle", (p.left+p.width-p.right)/2, p.height-6, fit(x, p.width-p.left, p.font))
}

const labelLine = 15 // pixels

// label returns an axis's label in one line, or in two if one is too long.
func (s sheet) label(a result.Axis) []string {
	lines := axisLabel(a)
	if one := strings.Join(lines, " "); textWidth(one, s.font) <= s.width-4 {
		return []string{one}
	}
	for i := range lines {
		lines[i] = fit(lines[i], s.width-4, s.font)
	}
	return lines
}

// labels writes the axes' labels at the top of the sheet.
func (d *drawing) labels(lines []string) {
	for i, text := range lines {
		d.text("label", "start", 2, 14+labelLine*float64(i), text)
	}
}

// axisLabel returns the text for the quantity of an axis.
func axisLabel(a result.Axis) []string {
	text := a.Label
	if a.Unit != "" && a.Unit != a.Label {
		text += ", " + a.Unit
	}
	var more []string
	if a.Log {
		more = append(more, "log scale")
	}
	if a.Better != "" {
		more = append(more, a.Better+" is better")
	}
	if len(more) > 0 {
		return []string{text, "(" + strings.Join(more, ", ") + ")"}
	}
	return []string{text}
}

// banded tells whether a point is part of a band. Other points with an interval have a whisker.
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

// stroke draws the line through the medians. It is dotted beside a median that is not trustworthy.
func (p *plot) stroke(l line) {
	var last *result.Point
	for _, point := range l.points {
		if len(point.Samples) == 0 {
			continue
		}
		if last != nil {
			class := l.stroke()
			if last.Wide || point.Wide {
				class += " doubtful"
			}
			p.line(class,
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
		told := value(point, p.figure.Y.Unit)
		if p.class == smallSheet.class && !point.HasInterval() {
			told = result.Number(point.Median) // may be of all runs together
		}
		p.hint(l.name + " at " + pointLabel(point) + ": " + told)
		if point.HasInterval() && !banded(l.points, i) {
			p.line("whisker", x, p.y.pixel(point.Low), x, p.y.pixel(point.High))
		}
		if l.knee > 0 && point.X == l.knee {
			p.marker("ring", l.shape, x, y, p.radius*2.1)
		}
		class := "marker"
		if point.Wide {
			class = "marker hollow"
		}
		p.marker(class, l.shape, x, y, p.radius)
		p.end()
	}
}

// knees draws a line across the plot at each knee, with its X above. It uses as many rows as
// necessary, so that no number covers another.
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
		width := textWidth(text, 12*bold)
		from := min(max(x-width/2, 2), p.width-width-2)
		row := slices.IndexFunc(used[:], func(end float64) bool { return end <= from })
		if row < 0 {
			continue // the legend has the name, too
		}
		used[row] = from + width + 8
		p.text("kneelabel", "start", from, p.top-9-float64(row)*13, text)
	}
}

// Names beside the ends of lines are faster to find than names in the legend. Wide sheets have room
// for them.
const (
	nameWidth = 240 // pixels at most
	nameLine  = 16
)

func (p *plot) named() bool { return p.nameLeast > 0 && len(p.lines) >= p.nameLeast }

func (p *plot) nameRoom() float64 {
	longest := 0.0
	for _, l := range p.lines {
		longest = max(longest, textWidth(l.name, p.font))
	}
	return min(longest+30, nameWidth)
}

// names writes the names beside the last points of the lines. It moves names apart if they would
// overlap.
func (p *plot) names() {
	if !p.named() {
		return
	}
	type end struct {
		line
		from position
		y    float64
	}
	var ends []end
	for _, l := range p.lines {
		for _, point := range slices.Backward(l.points) {
			if len(point.Samples) > 0 {
				at := position{p.x.pixel(point.X), p.y.pixel(point.Median)}
				ends = append(ends, end{l, at, at.y})
				break
			}
		}
	}
	slices.SortStableFunc(ends, func(a, b end) int { return cmp.Compare(a.y, b.y) })
	for i := range ends {
		if i > 0 {
			ends[i].y = max(ends[i].y, ends[i-1].y+nameLine)
		}
	}
	// Names below the bottom are moved back up.
	below := p.height - p.bottom - 4
	for i := range slices.Backward(ends) {
		ends[i].y = min(ends[i].y, below)
		below = ends[i].y - nameLine
	}
	x := p.width - p.right + 26
	for _, e := range ends {
		p.path(fmt.Sprintf("leader hue%d", e.hue), []position{{e.from.x + p.radius + 2, e.from.y}, {x - 5, e.y}}, false)
		p.text("name", "start", x, e.y+4.5, fit(e.name, p.width-x, p.font))
	}
}
