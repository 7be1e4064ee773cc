package result

import (
	"math"
	"testing"
)

// TestKnee checks from where on more containers cost more: a bend towards the worse.
func TestKnee(t *testing.T) {
	bent := func(x float64) float64 { return max(1, x/8) } // flat up to 8, then as x
	for name, test := range map[string]struct {
		y      func(x float64) float64
		better string
		xs     []float64
		want   float64
	}{
		"bent":             {bent, Lower, []float64{1, 2, 4, 8, 16, 32, 64}, 8},
		"bent for better":  {bent, Higher, []float64{1, 2, 4, 8, 16, 32, 64}, 0},
		"neither is worse": {bent, "", []float64{1, 2, 4, 8, 16, 32, 64}, 8},
		"falls":            {func(x float64) float64 { return 1 / bent(x) }, Higher, []float64{1, 2, 4, 8, 16, 32}, 8},
		"straight":         {func(x float64) float64 { return x }, Lower, []float64{1, 2, 4, 8, 16}, 0},
		"flat":             {func(float64) float64 { return 3 }, Lower, []float64{1, 2, 4, 8, 16}, 0},
		"too few points":   {bent, Lower, []float64{4, 8, 16}, 0},
		"all at one":       {bent, Lower, []float64{8, 8, 8, 8}, 0},
	} {
		s := &Series{}
		for _, x := range test.xs {
			s.Points = append(s.Points, &Point{X: x, Median: test.y(x)})
		}
		// None of these has a median to trust.
		s.Points = append(s.Points, &Point{X: 2, Median: 1000, Wide: true}, &Point{X: 2}, &Point{Median: 1000, Category: "a"})
		if got := s.knee(test.better); got != test.want {
			t.Errorf("%s: the knee is at %v, want %v", name, got, test.want)
		}
	}
}

// TestPercentiles checks that percentiles are interpolated, and that those which need more events
// are left out.
func TestPercentiles(t *testing.T) {
	if got := Median(nil); got != 0 {
		t.Errorf("the median of nothing is %v", got)
	}
	values := []float64{4, 1, 3, 2}
	for percent, want := range map[float64]float64{-5: 1, 0: 1, 50: 2.5, 75: 3.25, 100: 4, 200: 4} {
		if got := Percentile(values, percent); got != want {
			t.Errorf("percentile %v is %v, want %v", percent, got, want)
		}
	}
	if values[0] != 4 {
		t.Error("the values were sorted in place")
	}
	huge := []float64{-math.MaxFloat64, math.MaxFloat64}
	if got := Median(huge); got != 0 {
		t.Errorf("the median of the largest numbers is %v, want 0", got)
	}
	events := make([]float64, 1000)
	for n, want := range map[int]int{0: 0, 1: 1, 9: 1, 10: 2, 20: 3, 100: 4, 999: 4, 1000: 5} {
		var p Point
		p.SetPercentiles(events[:n])
		if len(p.Extra) != want {
			t.Errorf("%d events give %v, want %d percentiles", n, p.Extra, want)
		}
	}
}

// TestInterval checks the interval of the median: the range of few runs, and from six runs on one
// that is inside the range and always the same.
func TestInterval(t *testing.T) {
	if low, high := Interval(nil); low != 0 || high != 0 {
		t.Errorf("of nothing: %v to %v", low, high)
	}
	if low, high := Interval([]float64{5, 1, 3}); low != 1 || high != 5 {
		t.Errorf("of three runs: %v to %v, want their range", low, high)
	}
	many := make([]float64, 0, 101)
	for i := range 101 {
		many = append(many, float64((i*37)%101))
	}
	low, high := Interval(many)
	if again, _ := Interval(many); again != low {
		t.Errorf("the same runs give %v and then %v", low, again)
	}
	if low <= 0 || low >= 50 || high <= 50 || high >= 100 {
		t.Errorf("of 0 to 100: %v to %v, want an interval around 50", low, high)
	}
}

// TestSamplesThatAreNone checks that a run without a number is told, and changes no median.
func TestSamplesThatAreNone(t *testing.T) {
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		var p Point
		p.Add(7)
		p.Add(bad)
		p.AddExtra("p50", bad)
		p.finish()
		if p.Median != 7 || len(p.Samples) != 1 || p.Failed == "" || len(p.Extra) != 0 {
			t.Errorf("%v: %+v", bad, p)
		}
		if got := Jain([]float64{1, bad}); got != 0 {
			t.Errorf("the fairness of %v is %v", bad, got)
		}
	}
	if got := Jain([]float64{1e200, 1e200}); got != 1 {
		t.Errorf("the fairness of two equal huge values is %v, want 1", got)
	}
}
