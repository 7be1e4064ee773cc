package report

import (
	"fmt"
	"html"
	"regexp"

	"github.com/tsugiki/tsugiki/density/result"
)

// pictureSheet is the sheet of a picture without a legend beside it.
var pictureSheet = sheet{
	class: "plot", width: 860, height: 388, left: 58, right: 22, top: 52, bottom: 46, radius: 4.5, font: plotFont, nameLeast: 1,
}

// titleLine is the height of the title of a picture, in pixels.
const titleLine = 26

// referenceHue is the number of the style's grey.
const referenceHue = 6

// Picture draws a figure over a numeric axis as an SVG file of its own, with its title, in
// the light colours of the page. The references are lines of known values to compare with:
// grey, dashed and without markers. The caller has called Finish of the figure's results.
func Picture(f *result.Figure, references ...*result.Series) []byte {
	lines := make(palette).lines(f)
	for i, s := range references {
		lines = append(lines, line{name: s.FullName(), hue: referenceHue, dash: 1 + i%(dashes-1), points: s.Points, reference: true})
	}
	p := newPlot(f, lines, pictureSheet)
	d := &drawing{}
	p.drawing = d
	width, height := coordinate(p.width), coordinate(p.height+titleLine)
	fmt.Fprintf(d, `<svg xmlns="http://www.w3.org/2000/svg" class="%s" width="%s" height="%s" viewBox="0 0 %s %s" role="img" aria-label="%s">`,
		p.class, width, height, width, height, html.EscapeString(f.Title))
	fmt.Fprintf(d, "<style>%s</style>", html.EscapeString(pictureStyle()))
	d.rect("paper", 0, 0, p.width, p.height+titleLine, 0)
	d.text("title", "start", 2, titleLine-8, f.Title)
	fmt.Fprintf(d, `<g transform="translate(0 %d)">`, titleLine)
	p.draw()
	d.end()
	return []byte(d.close() + "\n")
}

var (
	cssVariable = regexp.MustCompile(`--([a-z0-9]+): ([^;]+);`)
	cssUse      = regexp.MustCompile(`var\(--([a-z0-9]+)\)`)
)

// pictureStyle returns the plots' part of the style without variables, with the colours of the
// light page. Most programs that show SVG have no variables, except browsers.
func pictureStyle() string {
	values := make(map[string]string)
	for _, m := range cssVariable.FindAllStringSubmatch(layoutText, -1) {
		if _, known := values[m[1]]; !known {
			values[m[1]] = m[2]
		}
	}
	const own = "svg { font: 13px system-ui, sans-serif; }\nsvg .paper { fill: var(--card); }\nsvg text.title { fill: var(--ink); font-size: 15px; font-weight: 600; }\n"
	return cssUse.ReplaceAllStringFunc(own+plotText, func(use string) string {
		return values[cssUse.FindStringSubmatch(use)[1]]
	})
}
