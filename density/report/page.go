package report

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tsugiki/tsugiki/density/result"
)

var (
	//go:embed page.html
	pageText string
	//go:embed style.css
	layoutText string
	//go:embed plot.css
	plotText  string
	styleText = layoutText + plotText

	//go:embed compare.html
	compareText string

	pages    = sync.OnceValue(newPages)
	compares = sync.OnceValue(func() *template.Template { return template.Must(newPages().New("compare").Parse(compareText)) })
)

func newPages() *template.Template { return template.Must(template.New("page").Parse(pageText)) }

// head is the beginning of both pages. Its content policy forbids everything except the page's own
// style.
type head struct {
	Title, Policy string
	Style         template.CSS
}

func newHead(title string) head {
	sum := sha256.Sum256([]byte(styleText))
	return head{
		Title: title, Style: template.CSS(styleText),
		Policy: "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; form-action 'none'",
	}
}

// page is the data of page.html.
type page struct {
	Head                      head
	Lead, Command, Incomplete string
	Facts, Options            []fact
	Limits, HowToRead         []string
	Files                     []fact // name and what it is
	Figures                   []figure
}

type figure struct {
	Number                 int
	ID, Title, Study, Took string
	Finding                []string
	Notes                  []string
	Legend                 []legend
	Hollow                 string // what hollow points mean, if there is one
	Plots                  []template.HTML
	Lines                  bool // false: bars
	Small                  []small
	Constant               string // measures that are the same at all points, in words
	Table                  table
	Download               template.URL
	DownloadName           string
}

type legend struct {
	Marker     template.HTML
	Name, Knee string
}

type small struct {
	Title, About string
	Plot         template.HTML
}

// HTML returns the page of r.
func HTML(r *result.Results) ([]byte, error) {
	p := page{
		Head: newHead(title), Lead: lead(r),
		Command: commandLine(r.Command), Incomplete: r.Incomplete,
		Facts: facts(r), Options: options(r), Limits: r.Limits, HowToRead: howToRead,
		Files: []fact{{result.File, "everything, as JSON"}, {CSVFile, "one row for each measure"}, {MarkdownFile, "the tables, as Markdown"}},
	}
	colours := make(palette)
	for i, f := range r.Figures {
		p.Figures = append(p.Figures, newFigure(i, f, colours))
	}
	var out bytes.Buffer
	if err := pages().Execute(&out, p); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func lead(r *result.Results) string {
	text := fmt.Sprintf("%s, measured from %s", count(len(r.Figures), "figure"), r.Started.UTC().Format(dateLayout))
	if took := r.Ended.Sub(r.Started); took > 0 {
		text += " in " + duration(took)
	}
	return text + fmt.Sprintf(", on a machine with %s and %s of memory.",
		count(r.Machine.Cores, "core"), gibibytes(r.Machine.MemoryBytes))
}

// palette gives a variant (a network, a storage) the same colour in all figures, as long as the
// variants of one figure still differ.
type palette map[string]int

// lines returns the looks of lines. Each line has its own shape. Lines of the same variant share a
// colour and have different dashes.
func (p palette) lines(f *result.Figure) []line {
	keys := variantKeys(f)
	taken := make(map[int]bool)
	for _, key := range keys {
		if hue, known := p[key]; known {
			taken[hue] = true
		}
	}
	here := make(map[string]int)
	used := make(map[int]int) // number of lines by colour
	var lines []line
	for i, s := range f.Series {
		key := keys[i]
		hue, drawn := here[key]
		if !drawn {
			hue = p.hue(key, here, taken)
			here[key] = hue
		}
		lines = append(lines, line{name: s.FullName(), hue: hue, shape: i % hues, dash: used[hue] % dashes, points: s.Points, knee: s.Knee})
		used[hue]++
	}
	return lines
}

// variantKeys returns the keys of the colours: the labels, or the names if all series have the same
// labels.
func variantKeys(f *result.Figure) []string {
	var labels, names []string
	differ := false
	for i, s := range f.Series {
		var text strings.Builder
		for _, key := range slices.Sorted(maps.Keys(s.Labels)) {
			text.WriteString(key + "\x00" + s.Labels[key] + "\x00")
		}
		labels, names = append(labels, text.String()), append(names, s.Name)
		differ = differ || labels[i] != labels[0]
	}
	if differ {
		return labels
	}
	return names
}

// hue returns the key's colour of other figures. If another key of this figure has that colour, it
// returns the first free one.
func (p palette) hue(key string, here map[string]int, taken map[int]bool) int {
	free := func(hue int) bool {
		for _, other := range here {
			if other == hue {
				return false
			}
		}
		return true
	}
	if hue, known := p[key]; known && free(hue) {
		return hue
	}
	hue := len(here) % hues // used if no colour is free
	for i := range hues {
		if free(i) && !taken[i] {
			hue = i
			break
		}
	}
	taken[hue] = true
	if _, known := p[key]; !known {
		p[key] = hue
	}
	return hue
}

func newFigure(i int, f *result.Figure, colours palette) figure {
	lines := colours.lines(f)
	v := figure{
		Number: i + 1, ID: fmt.Sprintf("figure-%d", i+1), Title: f.Title, Study: f.Study, Notes: f.Notes,
		Hollow: doubts(f), Table: tabulate(f),
		DownloadName: fileName(f.Name) + ".csv",
		Download:     template.URL("data:text/csv;base64," + base64.StdEncoding.EncodeToString(CSV(f))),
	}
	if f.Finding != "" {
		v.Finding = strings.Split(f.Finding, "\n")
	}
	if f.Seconds > 0 {
		v.Took = duration(time.Duration(min(f.Seconds, 1e9) * float64(time.Second)))
	}
	for _, l := range lines {
		v.Legend = append(v.Legend, newLegend(l))
	}
	draw := drawLines
	if categorical(f) {
		draw = drawBars
	} else {
		v.Small, v.Constant = smallPlots(f, lines)
	}
	v.Lines = !categorical(f)
	if measured(f) {
		v.Plots = []template.HTML{template.HTML(draw(f, lines, wideSheet)), template.HTML(draw(f, lines, narrowSheet))}
	}
	return v
}

func categorical(f *result.Figure) bool {
	for _, s := range f.Series {
		for _, p := range s.Points {
			if p.Category != "" {
				return true
			}
		}
	}
	return false
}

// measured tells whether there is a point to draw.
func measured(f *result.Figure) bool {
	for _, s := range f.Series {
		for _, p := range s.Points {
			if len(p.Samples) > 0 {
				return true
			}
		}
	}
	return false
}

func newLegend(l line) legend {
	d := &drawing{}
	fmt.Fprintf(d, `<svg class="key point hue%d" viewBox="-14 -8 28 16" aria-hidden="true">`, l.hue)
	if len(l.points) > 0 && l.points[0].Category == "" {
		d.line(l.stroke(), -14, 0, 14, 0)
	}
	d.marker("marker", l.shape, 0, 0, 5)
	entry := legend{Marker: template.HTML(d.close()), Name: l.name}
	if l.knee > 0 {
		entry.Knee = "knee at " + result.Number(l.knee)
	}
	return entry
}

// doubts describes in words which points are hollow or missing.
func doubts(f *result.Figure) string {
	var wide, failed, few, all int
	for _, s := range f.Series {
		for _, p := range s.Points {
			all++
			switch {
			case len(p.Samples) == 0:
				failed++
			case p.Wide:
				wide++
			case !p.HasInterval():
				few++
			}
		}
	}
	var words []string
	for _, w := range []struct {
		n    int
		what string
	}{
		{wide, "hollow: the runs differ by more than half of their median"},
		{few, "measured fewer than three times and without an interval"},
		{failed, "missing: no run succeeded"},
	} {
		if w.n > 0 {
			words = append(words, fmt.Sprintf("%d of %s %s.", w.n, count(all, "point"), w.what))
		}
	}
	return strings.Join(words, " ")
}

// smallPlots returns plots of the other measures at the same points. A measure that is the same at
// all points is only described.
func smallPlots(f *result.Figure, lines []line) (plots []small, constant string) {
	var same []string
	for _, key := range extras(f) {
		m := measureOf(f, key)
		var of []line
		var values []float64
		most := 0
		for _, l := range lines {
			one := l
			one.knee, one.points = 0, nil
			for _, p := range l.points {
				if v, there := p.Extra[key]; there {
					samples := p.ExtraSamples[key]
					if len(samples) == 0 { // the measure covers all runs together
						samples = []float64{v}
					}
					low, high := result.Interval(samples)
					one.points = append(one.points, &result.Point{X: p.X, Samples: samples, Median: v, Low: min(low, v), High: max(high, v)})
					values = append(values, v)
				}
			}
			if most = max(most, len(one.points)); len(one.points) > 0 {
				of = append(of, one)
			}
		}
		low, high := slices.Min(values), slices.Max(values)
		switch {
		case low == high:
			name, unit, _ := strings.Cut(m.title, ", ")
			same = append(same, strings.TrimSpace(name+" "+result.Number(low)+" "+unit))
		case most > 1: // otherwise the table is enough
			what := &result.Figure{Title: f.Title + ": " + m.title, Finding: m.about, X: f.X}
			if what.Y.Log = low > 0 && high > logFrom*low; what.Y.Log {
				m.title += " (log scale)"
			}
			plots = append(plots, small{m.title, m.about, template.HTML(drawLines(what, of, smallSheet))})
		}
	}
	if len(same) > 0 {
		constant = "The same at all points: " + strings.Join(same, "; ") + "."
	}
	return plots, constant
}

// logFrom is the ratio of the largest to the least value from which a linear axis would hide the
// least.
const logFrom = 100

// fileName keeps only characters that are safe in file systems and shells.
func fileName(name string) string {
	return strings.Map(func(r rune) rune {
		if '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || r == '-' {
			return r
		}
		return '-'
	}, name)
}
