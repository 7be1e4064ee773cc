package result

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestSavedResultsAreLoaded checks that a file has all that was saved, and that nothing else is left
// in the folder.
func TestSavedResultsAreLoaded(t *testing.T) {
	f := &Figure{Name: "web", X: Axis{Label: "containers"}, Y: Axis{Unit: "ms", Better: Lower}}
	line := f.Line("response", map[string]string{"network": "graft"})
	for _, sample := range []float64{3, 1, 2} {
		p := line.At(4)
		p.Add(sample)
		p.AddEach([]float64{1, 1, 0, 0})
		p.AddExtra("psi_some10", 10*sample)
	}
	r := &Results{Command: []string{"tsugiki", "density"}, Figures: []*Figure{f}}
	r.Finish()
	dir := t.TempDir()
	for range 2 { // the second one replaces the first
		if err := r.Save(dir); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, got, cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
	p := got.Figure("web").Line("response", map[string]string{"network": "graft"}).At(4)
	if p.Median != 2 || p.Low != 1 || p.High != 3 || p.Extra["jain"] != 0.5 || p.Extra["psi_some10"] != 20 {
		t.Errorf("%+v", p)
	}
	if got.Figure("io") != nil {
		t.Error("a figure that nobody made is there")
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("the folder has %v (%v), want the results alone", entries, err)
	}
}

// TestForeignResults checks that no page is made from what Save does not write.
func TestForeignResults(t *testing.T) {
	of := func(figures string) string { return `{"version":1,"figures":[` + figures + `]}` }
	series := func(points string) string {
		return of(`{"name":"io","series":[{"name":"read","points":[` + points + `]}]}`)
	}
	for name, test := range map[string]struct{ text, says string }{
		"empty":                {"", "JSON"},
		"no object":            {"[]", "array"},
		"another version":      {`{"version":2}`, "version 2"},
		"another type":         {`{"version":1,"figures":5}`, "number"},
		"null figure":          {of("null"), "figure 0 has no name"},
		"figure without name":  {of("{}"), "figure 0 has no name"},
		"figure twice":         {of(`{"name":"io"},{"name":"io"}`), "figure io is there twice"},
		"null series":          {of(`{"name":"io","series":[null]}`), "series 0 is null"},
		"null point":           {series("null"), "point 0 is null"},
		"huge sample":          {series(`{"samples":[1e200]}`), "no measure"},
		"huge extra":           {series(`{"extra":{"p50":-1e200}}`), "no measure"},
		"median above its own": {series(`{"median":5,"low":1,"high":2}`), "not within"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, File), []byte(test.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Load(dir); !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v, want ErrForeign with %q", err, test.says)
			}
		})
	}
	if _, err := Load(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder without results: %v, want fs.ErrNotExist", err)
	}
}

// TestSaveRefuses checks that a file which could not be loaded again is not written, and that the
// last one stays.
func TestSaveRefuses(t *testing.T) {
	dir := t.TempDir()
	if err := (&Results{}).Save(dir); err != nil {
		t.Fatal(err)
	}
	bad := &Results{Figures: []*Figure{{Name: "io"}, {Name: "io"}}}
	if err := bad.Save(dir); err == nil || !strings.Contains(err.Error(), "save results: figure io is there twice") {
		t.Errorf("%v", err)
	}
	if r, err := Load(dir); err != nil || len(r.Figures) != 0 {
		t.Errorf("the last results: %+v, %v", r, err)
	}
	if err := (&Results{}).Save(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder that is not there: %v, want fs.ErrNotExist", err)
	}
}
