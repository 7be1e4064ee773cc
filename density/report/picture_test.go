package report

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/density/result"
)

// A picture is well-formed XML, has its title, a name for each line, markers for what was
// measured only, and a style that asks for no variable.
func TestPicture(t *testing.T) {
	f := &result.Figure{Title: "a <title>", X: result.Axis{Label: "quota"}, Y: result.Axis{Label: "sum"}}
	known := &result.Series{Name: "the quota"}
	for _, x := range []float64{20, 50} {
		for _, sample := range []float64{x, x + 1, x + 2} {
			f.Line("measured", nil).At(x).Add(sample)
		}
		known.At(x).Add(x)
	}
	all := result.Results{Figures: []*result.Figure{f, {Series: []*result.Series{known}}}}
	all.Finish()
	picture := string(Picture(f, known))

	elements, text := make(map[string]int), ""
	for d := xml.NewDecoder(strings.NewReader(picture)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, picture)
		}
		switch token := token.(type) {
		case xml.StartElement:
			elements[token.Name.Local]++
		case xml.CharData:
			text += string(token) + "\n"
		}
	}
	for _, want := range []string{"a <title>\n", "measured\n", "the quota\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("the picture does not say %q", want)
		}
	}
	if elements["svg"] != 1 || elements["circle"] != 2 {
		t.Errorf("elements %v, want one svg and a marker for each of two points", elements)
	}
	if strings.Contains(picture, "var(") || !strings.Contains(picture, ".hue0 { color: #0b6fb8; }") {
		t.Error("the style has variables, or no colours")
	}
}
