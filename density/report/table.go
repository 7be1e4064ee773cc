package report

import (
	"github.com/tsugiki/tsugiki/density/result"
)

// table is a figure as rows, for the page and the Markdown.
type table struct {
	Columns []string
	Rows    []row
}

type row struct {
	Series, At, Runs, Median, Interval string
	Wide                               bool
	Extra                              []string
}

func tabulate(f *result.Figure) table {
	keys := extras(f)
	at := f.X.Label
	if at == "" {
		at = "at"
	}
	median := "Median"
	if f.Y.Unit != "" {
		median += ", " + f.Y.Unit
	}
	t := table{Columns: []string{"Series", at, "Runs", median, "Interval"}}
	for _, key := range keys {
		t.Columns = append(t.Columns, measureOf(f, key).title)
	}
	for _, s := range f.Series {
		for _, p := range s.Points {
			t.Rows = append(t.Rows, rowOf(s, p, keys))
		}
	}
	return t
}

func rowOf(s *result.Series, p *result.Point, keys []string) row {
	r := row{
		Series: s.FullName(), At: pointLabel(p), Runs: result.Number(float64(len(p.Samples))),
		Median: result.Number(p.Median), Interval: "–", Wide: p.Wide,
	}
	if p.HasInterval() {
		r.Interval = result.Number(p.Low) + " to " + result.Number(p.High)
	}
	switch {
	case len(p.Samples) == 0 && p.Failed != "":
		r.Median = "failed: " + p.Failed
	case len(p.Samples) == 0:
		r.Median = "not run"
	case p.Wide:
		r.Median = "too wide"
		r.Interval = result.Number(p.Low) + " to " + result.Number(p.High)
	}
	if s.Knee > 0 && p.Category == "" && p.X == s.Knee {
		r.At += " (knee)"
	}
	for _, key := range keys {
		cell := ""
		if v, there := p.Extra[key]; there {
			cell = result.Number(v)
		}
		r.Extra = append(r.Extra, cell)
	}
	return r
}
