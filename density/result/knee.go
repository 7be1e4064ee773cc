package result

import "math"

const (
	// kneeBend is the least change of slope, in the exponent of y = x^slope, that
	// is called a knee: from "as before" to "a third of a doubling for each
	// doubling of the containers".
	kneeBend = 1.0 / 3
	// kneeExplains is how much of what a straight line leaves the bent one must
	// explain.
	kneeExplains = 0.75
	kneePoints   = 4
)

// knee is where adding containers starts to cost more than before: the X at
// which a line in log-log space, bent once, fits best, if it bends towards the
// worse, by enough, and fits much better than a straight one. Points without a
// trustworthy median are left out. 0 if there is none.
func (s *Series) knee(better string) float64 {
	var xs, ys, at []float64
	for _, p := range s.Points {
		if p.Category != "" || p.Wide || p.X <= 0 || p.Median <= 0 {
			continue
		}
		xs, ys, at = append(xs, math.Log(p.X)), append(ys, math.Log(p.Median)), append(at, p.X)
	}
	if len(xs) < kneePoints {
		return 0
	}
	straight, _ := fitBent(xs, ys, math.Inf(1))
	best, knee := straight*(1-kneeExplains), 0.0
	for i := 1; i < len(xs)-1; i++ {
		left, bend := fitBent(xs, ys, xs[i])
		worse := math.Abs(bend)
		switch better {
		case Higher:
			worse = -bend
		case Lower:
			worse = bend
		}
		if left < best && worse >= kneeBend {
			best, knee = left, at[i]
		}
	}
	return knee
}

// fitBent fits y = a + slope·x + bend·max(0, x-knee) by least squares and has
// what is left and the bend. It solves the normal equations of x and the hinge,
// both centred, so that a falls out.
func fitBent(xs, ys []float64, knee float64) (left, bend float64) {
	n := float64(len(xs))
	hinge := make([]float64, len(xs))
	var mx, my, mh float64
	for i, x := range xs {
		hinge[i] = max(0, x-knee)
		mx, my, mh = mx+x/n, my+ys[i]/n, mh+hinge[i]/n
	}
	var xx, xh, hh, xy, hy float64
	for i := range xs {
		x, y, h := xs[i]-mx, ys[i]-my, hinge[i]-mh
		xx, xh, hh, xy, hy = xx+x*x, xh+x*h, hh+h*h, xy+x*y, hy+h*y
	}
	slope := 0.0
	if det := xx*hh - xh*xh; det > 1e-12*xx*hh {
		slope, bend = (xy*hh-hy*xh)/det, (hy*xx-xy*xh)/det
	} else if xx > 0 {
		slope = xy / xx
	}
	for i := range xs {
		d := ys[i] - my - slope*(xs[i]-mx) - bend*(hinge[i]-mh)
		left += d * d
	}
	return left, bend
}
