package report

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/tsugiki/tsugiki/density/result"
)

var csvHeader = []string{
	"figure", "series", "labels", "x", "category", "measure", "unit",
	"runs", "median", "low", "high", "wide", "samples",
}

// CSV returns a row for each point and measure of the figures. Statistics programs expect such a
// long table.
func CSV(figures ...*result.Figure) []byte {
	var out bytes.Buffer
	w := csv.NewWriter(&out)
	rows := [][]string{csvHeader}
	for _, f := range figures {
		for _, s := range f.Series {
			for _, p := range s.Points {
				rows = append(rows, csvRows(f, s, p)...)
			}
		}
	}
	_ = w.WriteAll(rows) // a bytes.Buffer never fails
	return out.Bytes()
}

func csvRows(f *result.Figure, s *result.Series, p *result.Point) [][]string {
	var labels []string
	for _, key := range slices.Sorted(maps.Keys(s.Labels)) {
		labels = append(labels, key+"="+s.Labels[key])
	}
	start := []string{inert(f.Name), inert(s.Name), inert(strings.Join(labels, ";")), exact(p.X), inert(p.Category)}
	row := func(measure, unit string, samples []float64, median, low, high string) []string {
		return append(slices.Clone(start), inert(measure), inert(unit), fmt.Sprint(len(samples)),
			median, low, high, strconv.FormatBool(p.Wide && measure == "value"), joined(samples))
	}
	var rows [][]string
	if len(p.Samples) == 0 {
		rows = append(rows, row("value", f.Y.Unit, nil, "", "", ""))
	} else {
		rows = append(rows, row("value", f.Y.Unit, p.Samples, exact(p.Median), exact(p.Low), exact(p.High)))
	}
	for _, key := range slices.Sorted(maps.Keys(p.Extra)) {
		rows = append(rows, row(key, "", p.ExtraSamples[key], exact(p.Extra[key]), "", ""))
	}
	return rows
}

func exact(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

func joined(values []float64) string {
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = exact(v)
	}
	return strings.Join(texts, ";")
}

// inert returns text that no spreadsheet takes for a formula. Anybody may have written the results.
func inert(text string) string {
	if text != "" && strings.ContainsRune("=+-@\t\r", rune(text[0])) {
		return "'" + text
	}
	return text
}
