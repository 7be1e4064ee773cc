package report

import (
	"encoding/csv"
	"html"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWrite(t *testing.T) {
	r, dir := full(1), t.TempDir()
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
		if !strings.Contains(markdown, "\n## ") || f.Study != "" && !strings.Contains(text, html.EscapeString(f.Study)) {
			t.Errorf("%s: title or study is missing", f.Name)
		}
	}
}
