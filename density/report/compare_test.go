package report

import (
	"bytes"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/density/result"
)

// sweepOf returns a sweep with one point for each of some medians.
func sweepOf(better string, medians ...float64) *result.Results {
	f := &result.Figure{Name: "f", Title: "F", Y: result.Axis{Unit: "ms", Better: better}}
	for i, m := range medians {
		p := f.Line("graft", nil).At(float64(i + 1))
		for _, by := range []float64{.99, 1, 1.01} {
			p.Add(m * by)
		}
	}
	r := &result.Results{Version: result.Version, Figures: []*result.Figure{f}}
	r.Finish()
	return r
}

func TestCompare(t *testing.T) {
	for _, tt := range []struct {
		better string
		after  float64
		want   string
	}{
		{result.Lower, 50, Better},
		{result.Lower, 200, Worse},
		{result.Higher, 200, Better},
		{result.Higher, 50, Worse},
		{result.Higher, 101, Same},
		{"", 200, More},
		{"", 50, Less},
	} {
		c := Compare(sweepOf(tt.better, 100), sweepOf(tt.better, tt.after))
		if len(c.Differences) != 1 || c.Differences[0].Verdict != tt.want || c.Differences[0].Ratio != tt.after/100 || between(c.Differences[0]) != (tt.want == Same) {
			t.Errorf("from 100 to %v, %q is better: %+v, want %s", tt.after, tt.better, c.Differences, tt.want)
		}
	}
}

func TestCompareDifferent(t *testing.T) {
	before, after := sweepOf(result.Lower, 1, 2), sweepOf(result.Lower, 1)
	after.Machine.Cores = 64
	after.Figures = append(after.Figures, &result.Figure{Name: "g\x1b[2J"})
	before.Figures[0].Series[0].Points[0].Samples = nil // none succeeded
	c := Compare(before, after)
	var out bytes.Buffer
	if err := c.Write(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`Cores: "0", "64"`, "f, graft at 2: only before", "g?[2J: only after", Unknown, "no run succeeded"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table has no %q:\n%s", want, out.String())
		}
	}
}

// between tells whether the bounds of a ratio include no change.
func between(d Difference) bool { return d.Low <= 1 && 1 <= d.High }

// TestRatioBounds checks that a ratio has bounds if it has a meaning.
func TestRatioBounds(t *testing.T) {
	d := Compare(sweepOf("", 100), sweepOf("", 200)).Differences[0]
	if got, want := d.ratioText(), "2 (1.96 to 2.04)"; got != want {
		t.Errorf("twice as much is %q, want %q", got, want)
	}
	few, many := sweepOf("", 100), sweepOf("", 200)
	few.Figures[0].Series[0].Points[0].Samples = []float64{100}
	few.Finish()
	d = Compare(few, many).Differences[0]
	if d.ratioText() != "2" || d.Verdict != Unknown {
		t.Errorf("with one run: %q, %s", d.ratioText(), d.Verdict)
	}
	if got, want := Compare(sweepOf("", 1, 2), sweepOf("", 1, 4)).Counts(), "2 points in both studies: 1 more, 1 not significantly different."; got != want {
		t.Errorf("counts are %q, want %q", got, want)
	}
}

// TestLabelsAreTold checks that a point is compared with the point of the series with the same
// labels, if several series have the same name.
func TestLabelsAreTold(t *testing.T) {
	c := Compare(full(1), full(1.5))
	for _, d := range c.Differences {
		want := map[string]string{"start": Better, "network": Better, "memory": Same, "cpu": Same}[d.Figure]
		if want != "" && d.Verdict != want {
			t.Errorf("%s, %s at %s: %s, want %s", d.Figure, d.Series, d.At, d.Verdict, want)
		}
	}
	if len(c.Only) != 0 || len(c.Differ) != 0 {
		t.Errorf("two studies of the same: %v, %v", c.Only, c.Differ)
	}
}
