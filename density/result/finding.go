package result

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// conclude words what the series of a figure do, a line for each.
func (f *Figure) conclude() string {
	var sentences []string
	for _, s := range f.Series {
		if text := s.conclude(f); text != "" {
			sentences = append(sentences, text)
		}
	}
	return strings.Join(sentences, "\n")
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
		return s.Name + ": the runs differ too much to say."
	}
	first, last := told[0], told[len(told)-1]
	text := fmt.Sprintf("%s: %s at %s", s.Name, withUnit(first.Median, f.Y.Unit), first.place())
	if first != last {
		text += fmt.Sprintf(", %s at %s", withUnit(last.Median, f.Y.Unit), last.place())
	}
	if s.Knee > 0 {
		text += fmt.Sprintf("; the knee is at %s", Number(s.Knee))
	}
	return text + "."
}

func (p *Point) place() string {
	if p.Category != "" {
		return p.Category
	}
	return Number(p.X)
}

func withUnit(v float64, unit string) string {
	if unit == "" {
		return Number(v)
	}
	return Number(v) + " " + unit
}

// Number prints v with three significant digits, more only where they stand
// before the point, thousands apart by commas.
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
