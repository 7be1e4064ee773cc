package result

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// conclude describes the series of a figure in words, one line for each series.
func (f *Figure) conclude() string {
	var sentences []string
	for _, s := range f.Series {
		if text := s.conclude(f); text != "" {
			sentences = append(sentences, text)
		}
	}
	return strings.Join(sentences, "\n")
}

// FullName returns the name, with the labels that the name does not contain.
func (s *Series) FullName() string {
	var parts []string
	if s.Name != "" {
		parts = append(parts, s.Name)
	}
	for _, key := range slices.Sorted(maps.Keys(s.Labels)) {
		if v := s.Labels[key]; v != "" && !strings.Contains(s.Name, v) {
			parts = append(parts, key+" "+v)
		}
	}
	return strings.Join(parts, ", ")
}

func (s *Series) conclude(f *Figure) string {
	var told []*Point
	for _, p := range s.Points {
		if len(p.Samples) > 0 && !p.Wide {
			told = append(told, p)
		}
	}
	if len(told) == 0 {
		if len(s.Points) == 0 {
			return ""
		}
		return s.FullName() + ": " + s.untold()
	}
	first, last := told[0], told[len(told)-1]
	lost := ""
	if n := len(s.Points) - len(told); n > 0 {
		lost = fmt.Sprintf(" %d of %d points cannot be told: no run succeeded there, or they differ too much.", n, len(s.Points))
	}
	if first.Category != "" {
		return s.FullName() + ": " + categories(told, f.Y.Unit) + lost
	}
	text := withUnit(first.Median, f.Y.Unit) + " at " + Number(first.X)
	if first != last {
		text = "from " + text + " to " + withUnit(last.Median, f.Y.Unit) + " at " + Number(last.X)
	}
	text += f.X.counted(last)
	if first != last {
		text += " (" + against(first, last) + ")"
	}
	if s.Knee > 0 {
		text += "; the knee is at " + Number(s.Knee)
	}
	return s.FullName() + ": " + text + "." + lost
}

// untold returns the reason why a series has no number.
func (s *Series) untold() string {
	for _, p := range s.Points {
		if len(p.Samples) > 0 {
			return "the runs differ too much to say."
		}
	}
	return "no run succeeded."
}

// against describes a point in words, compared with the point of the first series.
func against(first, p *Point) string {
	switch {
	case !first.HasInterval() || !p.HasInterval():
		return "too few runs to compare"
	case p.Low <= first.High && first.Low <= p.High:
		return alike
	case first.Median == 0:
		return "from nothing"
	}
	return strconv.FormatFloat(p.Median/first.Median, 'g', 2, 64) + " times that"
}

// categories describes all points in words, and tells which of them differ from the first.
func categories(told []*Point, unit string) string {
	first := told[0]
	var values, differ []string
	compared := 0
	for _, p := range told {
		values = append(values, p.Category+" "+withUnit(p.Median, unit))
		if p == first || !first.HasInterval() || !p.HasInterval() {
			continue
		}
		compared++
		if how := against(first, p); how != alike {
			differ = append(differ, p.Category+" ("+how+")")
		}
	}
	text := strings.Join(values, ", ") + "."
	switch {
	case len(differ) > 0:
		text += " Different from " + first.Category + ": " + strings.Join(differ, ", ") + "."
	case compared > 0:
		text += " None is significantly different from " + first.Category + "."
	}
	return text
}

const alike = "not significantly different"

// counted returns the noun for the X of a point.
func (a Axis) counted(p *Point) string {
	if a.Label == "" {
		return ""
	}
	if rest, many := strings.CutPrefix(a.Label, "containers"); many && p.X == 1 {
		return " container" + rest
	}
	return " " + a.Label
}

func withUnit(v float64, unit string) string {
	if unit == "" {
		return Number(v)
	}
	return Number(v) + " " + unit
}

// Number formats v with three significant digits, or with all digits before the point if these are
// more. Commas separate thousands.
func Number(v float64) string {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	if a := math.Abs(v); a >= 1e15 || a < 1e-6 {
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	decimals := max(0, 2-int(math.Floor(math.Log10(math.Abs(v)))))
	text := strconv.FormatFloat(v, 'f', decimals, 64)
	whole, part, _ := strings.Cut(text, ".")
	if part = strings.TrimRight(part, "0"); part != "" {
		part = "." + part
	}
	sign := ""
	if whole[0] == '-' {
		sign, whole = "-", whole[1:]
	}
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	return sign + whole + part
}
