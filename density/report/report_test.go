package report

import (
	"encoding/csv"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWrite(t *testing.T) {
	r, dir := sample(), t.TempDir()
	if err := Write(r, dir); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(dir, PageFile))
	if err != nil {
		t.Fatal(err)
	}
	text := string(page)
	if strings.Contains(text, "<script") || strings.Contains(text, "http://") && !strings.Contains(text, "http://www.w3.org/2000/svg") {
		t.Error("the page runs a script, or needs the network")
	}
	if plots := strings.Count(text, "<svg"); plots < len(r.Figures) {
		t.Errorf("%d plots of %d figures", plots, len(r.Figures))
	}
	rows, err := csv.NewReader(strings.NewReader(string(CSV(r.Figures...)))).ReadAll()
	if err != nil || len(rows) < 20 || len(rows[1]) != len(csvHeader) {
		t.Errorf("CSV: %d rows, %v", len(rows), err)
	}
	markdown := string(Markdown(r))
	for _, f := range r.Figures {
		if !strings.Contains(markdown, "\n## ") || f.Study != "" && !strings.Contains(text, f.Study[:20]) {
			t.Errorf("%s: title or study is missing", f.Name)
		}
	}
}

// TestMarkup checks that what is written in results.json is text on the page.
func TestMarkup(t *testing.T) {
	r := sample()
	evil := `"><script>alert(1)</script>`
	f := r.Figures[0]
	r.Incomplete, f.Title, f.Study, f.Finding, f.Series[0].Name, f.Y.Label = evil, evil, evil, evil, evil, evil
	f.Notes = append(f.Notes, evil)
	r.Command, r.Machine.CPU = []string{evil}, evil
	page, err := HTML(r)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(page), "<script") {
		t.Error("text has become markup")
	}
	for line := range strings.Lines(string(Markdown(r))) {
		// An indented line is code, in which nothing is markup.
		if strings.Contains(line, "<script") && !strings.HasPrefix(line, "    ") {
			t.Errorf("text has become markup: %s", line)
		}
	}
}
