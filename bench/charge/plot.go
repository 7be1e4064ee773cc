package main

import (
	"errors"
	"fmt"
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/tsugiki/tsugiki/bench/measure"
)

// Sizes and colours of plots. The colours are told apart also by those who see fewer
// (Okabe and Ito's).
const (
	plotWidth  = 16 * vg.Centimeter
	plotHeight = 11 * vg.Centimeter
)

var colours = []color.Color{
	color.RGBA{0xd5, 0x5e, 0x00, 0xff},
	color.RGBA{0x00, 0x72, 0xb2, 0xff},
	color.RGBA{0x00, 0x9e, 0x73, 0xff},
	color.RGBA{0xcc, 0x79, 0xa7, 0xff},
}

// writePlots draws what was measured into files that begin with prefix.
func (o *options) writePlots(r *measure.Report, prefix string) error {
	for _, c := range o.commands {
		if slices.Contains(o.figures, "accuracy") {
			if err := o.plotAccuracy(r, c, prefix+"-accuracy-"+c.name+".svg"); err != nil {
				return err
			}
		}
		if slices.Contains(o.figures, "isolation") && len(o.counts) > 1 {
			if err := o.plotIsolation(r, c, prefix+"-isolation-"+c.name+".svg"); err != nil {
				return err
			}
		}
	}
	return nil
}

// point is a median with its spread.
type point struct {
	x float64
	measure.Summary
}

// points are a line with error bars.
type points []point

func (p points) Len() int                    { return len(p) }
func (p points) XY(i int) (x, y float64)     { return p[i].x, p[i].Median }
func (p points) YError(i int) (a, b float64) { return p[i].Median - p[i].Min, p[i].Max - p[i].Median }

// plotAccuracy draws what a container and its logger take together by quota.
func (o *options) plotAccuracy(r *measure.Report, c command, file string) error {
	p := newPlot(fmt.Sprintf("container (%s) and its logger", c.name), "quota, % of a CPU", "both together, % of a CPU")
	for i, v := range o.variants {
		var line points
		for _, q := range o.quotas {
			if s := find(r, accuracyTest(c, q), "sum", v.name); s != nil {
				line = append(line, point{100 * float64(q) / float64(period), *s})
			}
		}
		if err := addLine(p, v.name, i, line); err != nil {
			return fmt.Errorf("plot %s: %w", file, err)
		}
	}
	var paper points
	for _, q := range o.quotas {
		if a, known := paperAccuracy[c.name][q]; known {
			paper = append(paper, exactly(100*float64(q)/float64(period), a[0]+a[2]))
		}
	}
	if err := addDashed(p, "paper, charging", paper); err != nil {
		return fmt.Errorf("plot %s: %w", file, err)
	}
	ideal := plotter.NewFunction(func(x float64) float64 { return x })
	ideal.Color = color.Gray{0xa0}
	p.Add(ideal)
	p.Legend.Add("the quota", ideal)
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 15, 55, 0, 105
	return p.Save(plotWidth, plotHeight, file)
}

// plotIsolation draws what the benchmark keeps by the number of containers.
func (o *options) plotIsolation(r *measure.Report, c command, file string) error {
	p := newPlot("sysbench beside containers with "+c.name, "containers on the CPU", "CPU time, to that beside dd alone")
	for i, v := range o.variants {
		var line points
		for _, n := range o.counts {
			if s := find(r, isolationTest(c, n), "share_to_dd", v.name); s != nil {
				line = append(line, point{float64(n), *s})
			}
		}
		if err := addLine(p, v.name, i, line); err != nil {
			return fmt.Errorf("plot %s: %w", file, err)
		}
	}
	var off points
	for n := 2; n <= 5; n++ {
		off = append(off, exactly(float64(n), paperRatios[n][c.name]))
	}
	said := paperCharged[c.name]
	charged := points{exactly(2, said[0]), exactly(5, said[1])}
	if err := errors.Join(addDashed(p, "paper, off", off), addDashed(p, "paper, charging", charged)); err != nil {
		return fmt.Errorf("plot %s: %w", file, err)
	}
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 1.8, 5.2, 0, math.Max(1.1, p.Y.Max)
	return p.Save(plotWidth, plotHeight, file)
}

func exactly(x, y float64) point { return point{x, measure.Summarize([]float64{y})} }

func newPlot(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.BackgroundColor = color.White
	p.Legend.ThumbnailWidth = vg.Centimeter
	p.Legend.XOffs, p.Legend.YOffs = -vg.Points(6), vg.Points(6)
	p.Add(plotter.NewGrid())
	return p
}

// addLine adds what was measured of one variant.
func addLine(p *plot.Plot, name string, colour int, line points) error {
	if len(line) == 0 {
		return nil
	}
	l, dots, err := plotter.NewLinePoints(line)
	if err != nil {
		return err
	}
	bars, err := plotter.NewYErrorBars(line)
	if err != nil {
		return err
	}
	l.Color, dots.Color, bars.Color = colours[colour], colours[colour], colours[colour]
	dots.Shape = draw.CircleGlyph{}
	p.Add(l, dots, bars)
	p.Legend.Add(name, l, dots)
	return nil
}

// addDashed adds figures of the paper.
func addDashed(p *plot.Plot, name string, line points) error {
	if len(line) == 0 {
		return nil
	}
	l, err := plotter.NewLine(line)
	if err != nil {
		return err
	}
	l.Color, l.Dashes = color.Gray{0x60}, []vg.Length{vg.Points(4), vg.Points(3)}
	p.Add(l)
	p.Legend.Add(name, l)
	return nil
}
