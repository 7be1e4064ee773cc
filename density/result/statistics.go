package result

import (
	"math"
	"math/rand/v2"
	"slices"
	"sort"
)

const (
	// resamples is the number of resamples of the bootstrap. With so many, the ends of a 95 %
	// interval vary by less than the spread of the samples.
	resamples = 2000
	// bootstrapFrom is the number of runs from which the bootstrap is used. An interval needs so
	// many to cover 95 %: the range of n runs covers 1 - 2^(1-n), which is 94 % for five.
	bootstrapFrom = 6
	// IntervalFrom is the smallest number of runs for an interval.
	IntervalFrom = 3
	// WideFrom is the width of an interval, as a multiple of the median, from which the median is
	// not worth printing.
	WideFrom = 0.5
)

// Finish computes everything from the samples: medians, intervals, fairness, knees, findings. It
// may be called again after more runs.
func (r *Results) Finish() {
	for _, f := range r.Figures {
		for _, s := range f.Series {
			for _, p := range s.Points {
				p.finish()
			}
			sort.SliceStable(s.Points, func(i, j int) bool { return s.Points[i].X < s.Points[j].X })
			s.Knee = s.knee(s.better(f))
		}
		if f.Conclude != nil {
			f.Finding = f.Conclude(f)
		} else {
			f.Finding = f.conclude()
		}
	}
}

func (s *Series) better(f *Figure) string {
	if s.Better != "" {
		return s.Better
	}
	return f.Y.Better
}

func (p *Point) finish() {
	for name, values := range p.ExtraSamples {
		if p.Extra == nil {
			p.Extra = make(map[string]float64)
		}
		p.Extra[name] = Median(values)
	}
	if fairness := p.fairness(); fairness > 0 {
		if p.Extra == nil {
			p.Extra = make(map[string]float64)
		}
		p.Extra["jain"] = fairness
	}
	p.Median, p.Low, p.High = 0, 0, 0
	if len(p.Samples) == 0 {
		p.Wide = false
		return
	}
	p.Median = Median(p.Samples)
	p.Low, p.High = Interval(p.Samples)
	p.Wide = p.High-p.Low > WideFrom*math.Abs(p.Median)
}

// fairness returns the median over the runs, or 0 if no run has the values of its containers.
func (p *Point) fairness() float64 {
	var each []float64
	for _, values := range p.PerContainer {
		if j := Jain(values); j > 0 {
			each = append(each, j)
		}
	}
	return Median(each)
}

// HasInterval tells whether there are enough runs for Low and High.
func (p *Point) HasInterval() bool { return len(p.Samples) >= IntervalFrom }

// Median returns the median of values, or 0 for none. It does not change values.
func Median(values []float64) float64 {
	return Percentile(values, 50)
}

// Percentile returns a percentile, interpolated between the two nearest sorted values, or 0 for
// none. It does not change values.
func Percentile(values []float64, percent float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return percentileOf(slices.Sorted(slices.Values(values)), percent)
}

func percentileOf(sorted []float64, percent float64) float64 {
	at := percent / 100 * float64(len(sorted)-1)
	at = min(max(at, 0), float64(len(sorted)-1))
	below := int(at)
	if below == len(sorted)-1 {
		return sorted[below]
	}
	// Weights are used, because a difference could overflow.
	part := at - float64(below)
	return sorted[below]*(1-part) + sorted[below+1]*part
}

// SetPercentiles sets the percentiles of single events (latencies) in Extra. It leaves out a
// percentile that needs more events: p99 needs a hundred, p999 a thousand.
func (p *Point) SetPercentiles(events []float64) {
	if p.Extra == nil {
		p.Extra = make(map[string]float64)
	}
	sorted := slices.Sorted(slices.Values(events))
	for _, q := range []struct {
		name    string
		percent float64
		needs   int
	}{{"p50", 50, 1}, {"p90", 90, 10}, {"p95", 95, 20}, {"p99", 99, 100}, {"p999", 99.9, 1000}} {
		if len(sorted) >= q.needs {
			p.Extra[q.name] = percentileOf(sorted, q.percent)
		}
	}
}

// Interval returns the interval of the median. From six runs on it is the 95 % interval by
// bootstrap (percentile method). With fewer runs it is the range of the runs. Equal samples always
// give the same interval.
func Interval(samples []float64) (low, high float64) {
	if len(samples) == 0 {
		return 0, 0
	}
	sorted := slices.Sorted(slices.Values(samples))
	if len(sorted) < bootstrapFrom {
		return sorted[0], sorted[len(sorted)-1]
	}
	random := rand.New(rand.NewPCG(0x7375, uint64(len(sorted))))
	medians := make([]float64, resamples)
	again := make([]float64, len(sorted))
	for i := range medians {
		for k := range again {
			again[k] = sorted[random.IntN(len(sorted))]
		}
		slices.Sort(again)
		medians[i] = percentileOf(again, 50)
	}
	slices.Sort(medians)
	return percentileOf(medians, 2.5), percentileOf(medians, 97.5)
}

// Jain returns Jain's fairness index: 1 if all values are equal, 1/n if one value has everything, 0
// if there are no values.
func Jain(values []float64) float64 {
	var largest float64
	for _, v := range values {
		largest = max(largest, math.Abs(v))
	}
	if largest == 0 || math.IsNaN(largest) || math.IsInf(largest, 0) {
		return 0
	}
	var sum, squares float64
	for _, v := range values {
		v /= largest // squares could overflow otherwise
		sum += v
		squares += v * v
	}
	return sum * sum / (float64(len(values)) * squares)
}
