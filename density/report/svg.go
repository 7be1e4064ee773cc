package report

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// drawing writes SVG elements. Elements have classes and no colours: the page's style has the light
// and dark colours.
type drawing struct {
	strings.Builder
}

// newDrawing starts an image with a description for readers who cannot see it.
func newDrawing(class string, width, height float64, title, description string) *drawing {
	d := &drawing{}
	fmt.Fprintf(d, `<svg class="%s" viewBox="0 0 %s %s" role="img" aria-label="%s">`,
		class, coordinate(width), coordinate(height), html.EscapeString(title+". "+description))
	return d
}

func (d *drawing) close() string {
	d.WriteString("</svg>")
	return d.String()
}

func (d *drawing) open(class string) { fmt.Fprintf(d, `<g class="%s">`, class) }
func (d *drawing) end()              { d.WriteString("</g>") }

// hint sets the text that is shown while the pointer is over the group that was just opened.
func (d *drawing) hint(text string) {
	fmt.Fprintf(d, `<title>%s</title>`, html.EscapeString(text))
}

func (d *drawing) line(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(d, `<line class="%s" x1="%s" y1="%s" x2="%s" y2="%s"/>`,
		class, coordinate(x1), coordinate(y1), coordinate(x2), coordinate(y2))
}

func (d *drawing) rect(class string, x, y, width, height, radius float64) {
	fmt.Fprintf(d, `<rect class="%s" x="%s" y="%s" width="%s" height="%s" rx="%s"/>`,
		class, coordinate(x), coordinate(y), coordinate(max(width, 0)), coordinate(height), coordinate(radius))
}

// text writes text that is anchored at its "start", "middle" or "end".
func (d *drawing) text(class, anchor string, x, y float64, text string) {
	fmt.Fprintf(d, `<text class="%s" text-anchor="%s" x="%s" y="%s">%s</text>`,
		class, anchor, coordinate(x), coordinate(y), html.EscapeString(text))
}

type position struct{ x, y float64 }

// path draws a line through positions. A closed line is an area.
func (d *drawing) path(class string, through []position, closed bool) {
	fmt.Fprintf(d, `<path class="%s" d="`, class)
	for i, p := range through {
		command := "L"
		if i == 0 {
			command = "M"
		}
		d.WriteString(command + coordinate(p.x) + " " + coordinate(p.y))
	}
	if closed {
		d.WriteString("Z")
	}
	d.WriteString(`"/>`)
}

// shapes has the outlines of markers around 0 with a radius of 1. Their areas look equal. Lines
// differ by shape as well as by colour.
var shapes = [][]position{
	nil, // a circle
	{{-.85, -.85}, {.85, -.85}, {.85, .85}, {-.85, .85}},
	{{0, -1.2}, {1.1, .8}, {-1.1, .8}},
	{{0, -1.25}, {1.25, 0}, {0, 1.25}, {-1.25, 0}},
	{{0, 1.2}, {1.1, -.8}, {-1.1, -.8}},
	{{-.4, -1.1}, {.4, -1.1}, {.4, -.4}, {1.1, -.4}, {1.1, .4}, {.4, .4}, {.4, 1.1}, {-.4, 1.1}, {-.4, .4}, {-1.1, .4}, {-1.1, -.4}, {-.4, -.4}},
	{{-.55, -1}, {.55, -1}, {1.1, 0}, {.55, 1}, {-.55, 1}, {-1.1, 0}},
	{{0, -1.2}, {1.15, -.35}, {.7, 1}, {-.7, 1}, {-1.15, -.35}},
}

// hues is the number of colours and of shapes before they repeat.
var hues = len(shapes)

func (d *drawing) marker(class string, hue int, x, y, radius float64) {
	shape := shapes[hue%hues]
	if shape == nil {
		fmt.Fprintf(d, `<circle class="%s" cx="%s" cy="%s" r="%s"/>`, class, coordinate(x), coordinate(y), coordinate(radius))
		return
	}
	outline := make([]position, len(shape))
	for i, p := range shape {
		outline[i] = position{x + p.x*radius, y + p.y*radius}
	}
	d.path(class, outline, true)
}

// coordinate formats a coordinate to a tenth of a pixel. It never prints NaN or infinity. A value
// far outside the plot stays far outside.
func coordinate(v float64) string {
	if math.IsNaN(v) {
		v = 0
	}
	v = min(max(v, -1e5), 1e5)
	text := fmt.Sprintf("%.1f", v)
	return strings.TrimSuffix(text, ".0")
}

// textWidth estimates the width of text at a font size. It assumes one of the wider fonts of pages,
// so that narrower ones fit, too.
func textWidth(text string, size float64) float64 {
	em := 0.0
	for _, r := range text {
		switch {
		case strings.ContainsRune("iljI.,:;'|!()[]/ -", r):
			em += .37
		case strings.ContainsRune("mwMW%…", r) || r > 0x2000:
			em += 1
		case 'A' <= r && r <= 'Z':
			em += .72
		default:
			em += .63
		}
	}
	return em * size
}

// bold is the factor by which bold text is wider.
const bold = 1.13

// fit shortens text to a width in pixels.
func fit(text string, width, size float64) string {
	if textWidth(text, size) <= width {
		return text
	}
	for letters := []rune(text); len(letters) > 0; letters = letters[:len(letters)-1] {
		if cut := string(letters) + "…"; textWidth(cut, size) <= width {
			return cut
		}
	}
	return "…"
}
