package report

import (
	"math"
	"slices"
	"strconv"

	"github.com/tsugiki/tsugiki/density/result"
)

// scale maps values to pixels, and has the ticks of the axis.
type scale struct {
	log      bool
	from, to float64 // values, or their logarithms
	zero     float64 // where a value without a logarithm is drawn
	at, size float64 // pixels; size is negative on an axis that points up
	ticks    []tick
}

type tick struct {
	value float64
	label string
}

func (s *scale) pixel(v float64) float64 {
	if s.log {
		if v <= 0 {
			v = s.zero
		}
		v = math.Log2(v)
	}
	return s.at + s.size*((v-s.from)/(s.to-s.from))
}

// newScale returns a scale for all values. A linear scale starts at 0, so that lengths are
// proportional to values. A logarithmic scale needs a positive value.
func newScale(values []float64, log bool, at, size float64, room int) *scale {
	s := &scale{at: at, size: size}
	var low, high, positive float64
	for _, v := range values {
		low, high = min(low, v), max(high, v)
		if v > 0 && (positive == 0 || v < positive) {
			positive = v
		}
	}
	if s.log = log && positive > 0 && low >= 0; s.log {
		s.logarithmic(positive, high, slices.Contains(values, 0), room)
		return s
	}
	if low == high {
		high = 1
	}
	step := niceStep((high - low) / float64(max(room, 1)))
	first, last := math.Floor(low/step), math.Ceil(high/step)
	for i := first; i <= last; i++ {
		s.ticks = append(s.ticks, tick{i * step, short(i * step)})
	}
	s.from, s.to = first*step, last*step
	return s
}

// logarithmic makes the scale reach from tick to tick. The ticks are powers of ten, and twice and
// five times these if there is room. A zero is drawn a factor of two below all other values.
func (s *scale) logarithmic(low, high float64, zero bool, room int) {
	decades := math.Log10(high) - math.Log10(low)
	steps := []float64{1}
	if decades*3 <= float64(room) {
		steps = []float64{1, 2, 5}
	}
	every := max(1, math.Ceil(decades/float64(max(room, 1))))
	for e := math.Floor(math.Log10(low)); e < math.Log10(high)+every; e += every {
		for _, step := range steps {
			v := step * math.Pow(10, e)
			s.ticks = append(s.ticks, tick{v, short(v)})
		}
	}
	for len(s.ticks) > 1 && s.ticks[1].value <= low {
		s.ticks = s.ticks[1:]
	}
	for n := len(s.ticks); n > 1 && s.ticks[n-2].value >= high; n-- {
		s.ticks = s.ticks[:n-1]
	}
	low, high = min(low, s.ticks[0].value), max(high, s.ticks[len(s.ticks)-1].value)
	s.zero = low / 2
	if zero {
		s.ticks = append([]tick{{s.zero, "0"}}, s.ticks...)
		low = s.zero
	}
	s.from, s.to = math.Log2(low), math.Log2(high)
	if s.from == s.to {
		s.from, s.to = s.from-1, s.to+1
	}
}

// measured sets the ticks of a logarithmic axis to the measured values, without those that have no
// room.
func (s *scale) measured(values []float64, room float64) {
	values = slices.Compact(slices.Sorted(slices.Values(values)))
	s.from = math.Log2(max(values[0], s.zero))
	s.to = math.Log2(max(values[len(values)-1], s.zero))
	if s.from == s.to {
		s.from, s.to = s.from-1, s.to+1
	}
	s.ticks = nil
	// It starts with the largest value: the end of the sweep must have a tick.
	last := math.Inf(1)
	for _, v := range slices.Backward(values) {
		label := short(v)
		if at := s.pixel(v); at+room*float64(len(label)+1) <= last || len(s.ticks) == 0 {
			s.ticks = append(s.ticks, tick{v, label})
			last = at
		}
	}
}

// niceStep returns the smallest of 1, 2, 5, 10, … that is not below least.
func niceStep(least float64) float64 {
	if least <= 0 || math.IsInf(least, 0) || math.IsNaN(least) {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(least)))
	for _, m := range []float64{1, 2, 5} {
		if m*power >= least {
			return m * power
		}
	}
	return 10 * power
}

// short formats a number for an axis.
func short(v float64) string {
	for _, u := range []struct {
		from   float64
		suffix string
	}{{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e4, "k"}} {
		size := u.from
		if u.suffix == "k" {
			size = 1e3
		}
		if a := math.Abs(v); a >= u.from && a < 1e15 {
			return strconv.FormatFloat(v/size, 'g', 4, 64) + u.suffix
		}
	}
	return result.Number(v)
}
