package report

import (
	"bytes"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"strings"
	"time"

	"github.com/tsugiki/tsugiki/density/result"
)

var (
	//go:embed page.html
	pageText string
	//go:embed style.css
	styleText string

	pages = template.Must(template.New("page").Parse(pageText))
)

// page is what page.html shows.
type page struct {
	Title, Lead, Command, Incomplete string
	Style                            template.CSS
	Facts, Options                   []fact
	Limits, HowToRead                []string
	Files                            []fact // name and what it is
	Figures                          []figure
}

type figure struct {
	Number                 int
	ID, Title, Study, Took string
	Finding                []string
	Notes                  []string
	Legend                 []legend
	Hollow                 string // in words, if a point is
	Plots                  []template.HTML
	Small                  []small
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

// HTML is the page of r.
func HTML(r *result.Results) ([]byte, error) {
	p := page{
		Title: title, Style: template.CSS(styleText), Lead: lead(r),
		Command: commandLine(r.Command), Incomplete: r.Incomplete,
		Facts: facts(r), Options: options(r), Limits: r.Limits, HowToRead: howToRead,
		Files: []fact{{result.File, "everything, as JSON"}, {CSVFile, "one row for each measure"}, {MarkdownFile, "the tables, as Markdown"}},
	}
	colours := make(palette)
	for i, f := range r.Figures {
		p.Figures = append(p.Figures, newFigure(i, f, colours))
	}
	var out bytes.Buffer
	if err := pages.Execute(&out, p); err != nil {
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

// palette gives a series the same colour in all figures, as long as there are
// enough for all series of a figure to differ.
type palette map[string]int

func (p palette) lines(f *result.Figure) []line {
	taken := make(map[int]bool)
	var lines []line
	for _, s := range f.Series {
		name := seriesName(s)
		if _, known := p[name]; !known {
			p[name] = len(p)
		}
		hue := p[name] % hues
		for i := 0; taken[hue] && i < hues; i++ {
			hue = (hue + 1) % hues
		}
		taken[hue] = true
		lines = append(lines, line{name: name, hue: hue, points: s.Points, knee: s.Knee})
	}
	return lines
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
		v.Small = smallPlots(f, lines)
	}
	if len(v.Table.Rows) > 0 {
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

func newLegend(l line) legend {
	d := &drawing{}
	fmt.Fprintf(d, `<svg class="key point hue%d" viewBox="-8 -8 16 16" aria-hidden="true">`, l.hue)
	d.marker("marker", l.hue, 0, 0, 5)
	entry := legend{Marker: template.HTML(d.close()), Name: l.name}
	if l.knee > 0 {
		entry.Knee = "knee at " + result.Number(l.knee)
	}
	return entry
}

// doubts says in words which points are hollow or missing.
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

// smallPlots show what else was measured at the same points.
func smallPlots(f *result.Figure, lines []line) []small {
	var plots []small
	for _, key := range extras(f) {
		title, about := measureTitle(key)
		var of []line
		points := 0
		for _, l := range lines {
			one := line{name: l.name, hue: l.hue}
			for _, p := range l.points {
				if v, there := p.Extra[key]; there {
					one.points = append(one.points, &result.Point{X: p.X, Samples: []float64{v}, Median: v, Low: v, High: v})
				}
			}
			if points = max(points, len(one.points)); len(one.points) > 0 {
				of = append(of, one)
			}
		}
		if points < 2 {
			continue // the table has it
		}
		what := &result.Figure{Title: f.Title + ": " + title, Finding: about, X: f.X}
		plots = append(plots, small{title, about, template.HTML(drawLines(what, of, smallSheet))})
	}
	return plots
}

// fileName keeps what no file system and no shell minds.
func fileName(name string) string {
	return strings.Map(func(r rune) rune {
		if '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || r == '-' {
			return r
		}
		return '-'
	}, name)
}
