package result

import "math"

const (
	// kneeBend is the smallest change of slope that is called a knee. The slope is the exponent of
	// y = x^slope: the change is a third of a doubling for each doubling of the containers.
	kneeBend = 1.0 / 3
	// kneeExplains is the part of the straight line's residual that the bent line must explain.
	kneeExplains = 0.75
	kneePoints   = 4
)

// knee returns the X from which more containers cost more than before. It fits a line with one bend
// in log-log space. The bend must go towards the worse and be large enough, and the bent line must
// fit much better than a straight one. Points without a trustworthy median are left out. It returns
// 0 if there is no knee.
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

// fitBent fits y = a + slope·x + bend·max(0, x-knee) by least squares, and returns the residual and
// the bend. It solves the normal equations of x and the hinge, both centred, so that a drops out.
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
