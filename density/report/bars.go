package report

import (
	"fmt"
	"math"

	"github.com/tsugiki/tsugiki/density/result"
)

const (
	barHeight = 20.0
	barGap    = 5.0
	groupGap  = 18.0
	groupHead = 20.0
)

// drawBars draws a plot with categories. Each series has a bar below the name of its category, so
// that both names can be long, even on a telephone.
func drawBars(f *result.Figure, lines []line, on sheet) string {
	groups := categories(lines)
	label := on.label(f.Y)
	top := 9 + labelLine*float64(len(label))
	height := top + 30
	for _, g := range groups {
		height += groupHead + groupGap - barGap + float64(len(barsOf(lines, g)))*(barHeight+barGap)
	}
	d := newDrawing(on.class, on.width, height, f.Title, f.Finding)
	d.labels(label)

	// Leave room for the longest text beside a bar.
	room := 0.0
	var values []float64
	for _, l := range lines {
		for _, p := range l.points {
			values = append(values, p.Median)
			if p.HasInterval() {
				values = append(values, p.Low, p.High)
			}
			room = max(room, textWidth(barText(p), on.font))
		}
	}
	inner := on.width - 2 - min(room+14, on.width/2)
	x := newScale(values, false, 2, inner, int(inner/70))
	for _, t := range x.ticks {
		at := x.pixel(t.value)
		d.line("grid", at, top, at, height-24)
		d.tick(at, height-8, on.width, on.font, t.label)
	}
	y := top
	for _, g := range groups {
		d.text("group", "start", 2, y+14, fit(g, on.width, on.font*bold))
		y += groupHead
		for _, b := range barsOf(lines, g) {
			drawBar(d, b, x, y, f.Y.Unit)
			y += barHeight + barGap
		}
		y += groupGap - barGap
	}
	return d.close()
}

// tick writes a tick's label centred at a coordinate, but within the sheet.
func (d *drawing) tick(at, y, width, font float64, label string) {
	half := textWidth(label, font)/2 + 1
	d.text("tick", "middle", max(half, min(at, width-half)), y, label)
}

type bar struct {
	line
	point *result.Point
}

func categories(lines []line) []string {
	var all []string
	seen := make(map[string]bool)
	for _, l := range lines {
		for _, p := range l.points {
			if name := pointLabel(p); !seen[name] {
				seen[name] = true
				all = append(all, name)
			}
		}
	}
	return all
}

func barsOf(lines []line, category string) []bar {
	var bars []bar
	for _, l := range lines {
		for _, p := range l.points {
			if pointLabel(p) == category {
				bars = append(bars, bar{l, p})
			}
		}
	}
	return bars
}

func barText(p *result.Point) string {
	switch {
	case len(p.Samples) == 0:
		return "no run succeeded"
	case p.Wide:
		return "too wide: " + result.Number(p.Low) + " to " + result.Number(p.High)
	}
	return result.Number(p.Median)
}

func drawBar(d *drawing, b bar, x *scale, y float64, unit string) {
	d.open(fmt.Sprintf("point hue%d", b.hue))
	d.hint(b.name + ", " + pointLabel(b.point) + ": " + value(b.point, unit))
	from, to := x.pixel(0), x.pixel(b.point.Median)
	class := "bar"
	if b.point.Wide {
		class = "bar hollow"
	}
	end := to
	if len(b.point.Samples) > 0 {
		d.rect(class, min(from, to), y, math.Abs(to-from), barHeight, 3)
	}
	if b.point.HasInterval() {
		low, high := x.pixel(b.point.Low), x.pixel(b.point.High)
		middle := y + barHeight/2
		d.line("whisker", low, middle, high, middle)
		d.line("whisker", low, middle-4, low, middle+4)
		d.line("whisker", high, middle-4, high, middle+4)
		end = max(end, high)
	}
	d.end()
	d.text("value", "start", max(end, from)+8, y+barHeight/2+4.5, barText(b.point))
}
