package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/density/report"
	"github.com/tsugiki/tsugiki/density/result"
)

// writePlots draws the measured values into files whose names begin with prefix.
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

// plotAccuracy draws the CPU time of a container and its logger together, by quota.
func (o *options) plotAccuracy(r *measure.Report, c command, file string) error {
	f := &result.Figure{
		Title: fmt.Sprintf("container (%s) and its logger", c.name),
		X:     result.Axis{Label: "quota, % of a CPU"}, Y: result.Axis{Label: "both together, % of a CPU"},
	}
	percent := func(quota time.Duration) float64 { return 100 * float64(quota) / float64(period) }
	paper, ideal := &result.Series{Name: "paper, charging"}, &result.Series{Name: "the quota"}
	for _, q := range o.quotas {
		for _, v := range o.variants {
			addPoint(f, v, percent(q), find(r, accuracyTest(c, q), "sum", v.name))
		}
		if a, known := paperAccuracy[c.name][q]; known {
			paper.At(percent(q)).Add(a[0] + a[2])
		}
		ideal.At(percent(q)).Add(percent(q))
	}
	return plot(f, file, paper, ideal)
}

// plotIsolation draws how much CPU time the benchmark keeps, by the number of containers.
func (o *options) plotIsolation(r *measure.Report, c command, file string) error {
	f := &result.Figure{
		Title: "sysbench beside containers with " + c.name,
		X:     result.Axis{Label: "containers on the CPU"}, Y: result.Axis{Label: "CPU time, to that beside dd alone"},
	}
	off, charging := &result.Series{Name: "paper, off"}, &result.Series{Name: "paper, charging"}
	for _, n := range o.counts {
		for _, v := range o.variants {
			addPoint(f, v, float64(n), find(r, isolationTest(c, n), "share_to_dd", v.name))
		}
	}
	for n := 2; n <= 5; n++ {
		off.At(float64(n)).Add(paperRatios[n][c.name])
	}
	for i, n := range []float64{2, 5} {
		charging.At(n).Add(paperCharged[c.name][i])
	}
	return plot(f, file, off, charging)
}

// addPoint adds the rounds of one measurement; nil: it was not made.
func addPoint(f *result.Figure, v variant, x float64, measured *measure.Result) {
	if measured == nil {
		return
	}
	point := f.Line(v.name, nil).At(x)
	for _, value := range measured.Values {
		point.Add(value)
	}
}

// plot draws a figure beside known values.
func plot(f *result.Figure, file string, references ...*result.Series) error {
	references = slices.DeleteFunc(references, func(s *result.Series) bool { return len(s.Points) == 0 })
	all := result.Results{Figures: []*result.Figure{f, {Series: references}}}
	all.Finish()
	for _, s := range f.Series {
		s.Knee = 0 // a knee is of many containers
	}
	return result.WriteFile(file, report.Picture(f, references...))
}
