package report

import (
	"bytes"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/density/result"
)

// sweepOf has one point for each of some medians.
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
		if len(c.Differences) != 1 || c.Differences[0].Verdict != tt.want || c.Differences[0].Ratio != tt.after/100 {
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
