package report

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"html"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/density/result"
)

// committed is the folder of the study in docs, if there is one.
const committed = "../../docs/density"

// committedLimit is the largest size of the whole folder in bytes. Each new study stays in the
// repository's history.
const committedLimit = 2 << 20

func loadCommitted(t *testing.T) *result.Results {
	t.Helper()
	r, err := result.Load(committed)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	r.Finish()
	return r
}

// TestCommitted checks that the committed page and tables, and those that this code makes of the
// committed results.json, show all of that study. They may look different.
func TestCommitted(t *testing.T) {
	r := loadCommitted(t)
	if r == nil {
		t.Fatal("docs have no study; make density-report makes one")
	}
	if r.Incomplete != "" {
		t.Errorf("the study is incomplete: %s", r.Incomplete)
	}
	dir := t.TempDir()
	if err := Write(r, dir); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{dir, committed} {
		checkPage(t, r, filepath.Join(dir, PageFile))
		checkMarkdown(t, r, filepath.Join(dir, MarkdownFile))
		checkCSV(t, r, filepath.Join(dir, CSVFile))
	}
	files, err := os.ReadDir(committed)
	if err != nil {
		t.Fatal(err)
	}
	var size int64
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	if size > committedLimit {
		t.Errorf("docs/density has %d bytes, more than %d: make it with a smaller --max or fewer figures", size, committedLimit)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// checkPage checks that a page has the command and each figure with its title, its finding, a
// plot of each width, and a row with the median of each point.
func checkPage(t *testing.T, r *result.Results, file string) {
	t.Helper()
	page := html.UnescapeString(read(t, file))
	if !strings.Contains(page, commandLine(r.Command)) {
		t.Errorf("%s does not say: %s", file, commandLine(r.Command))
	}
	sections := strings.Split(page, "<section ")[1:]
	if len(sections) != len(r.Figures) {
		t.Fatalf("%s has %d figures, want %d", file, len(sections), len(r.Figures))
	}
	for i, f := range r.Figures {
		section := sections[i]
		for _, want := range []string{f.Title + "</h2>", `class="plot wide"`, `class="plot narrow"`} {
			if strings.Count(section, want) != 1 {
				t.Errorf("%s, figure %s: %d times %q, want 1", file, f.Name, strings.Count(section, want), want)
			}
		}
		points := 0
		for _, s := range f.Series {
			for _, p := range s.Points {
				points++
				if median := fmt.Sprintf("<td>%s</td>", rowOf(s, p, nil).Median); !strings.Contains(section, median) {
					t.Errorf("%s, figure %s, %s at %s: no %s", file, f.Name, s.FullName(), pointLabel(p), median)
				}
			}
		}
		if rows := strings.Count(section, `<th scope="row">`); rows != points {
			t.Errorf("%s, figure %s: %d rows for %d points", file, f.Name, rows, points)
		}
	}
}

// checkMarkdown checks that there is a heading for each figure, and a table's row for each
// point.
func checkMarkdown(t *testing.T, r *result.Results, file string) {
	t.Helper()
	text := read(t, file)
	sections := strings.Split(text, "\n## ")[1:]
	if len(sections) != len(r.Figures) || !strings.Contains(text, code(commandLine(r.Command))) {
		t.Fatalf("%s has %d figures, want %d, with the command", file, len(sections), len(r.Figures))
	}
	for i, f := range r.Figures {
		points := 0
		for _, s := range f.Series {
			points += len(s.Points)
		}
		const header = 2 // lines
		if rows := strings.Count(sections[i], "\n| "); !strings.HasPrefix(sections[i], plain(f.Title)+"\n") || rows < points || rows > points+header {
			t.Errorf("%s, figure %s: %d rows for %d points, below %.60q", file, f.Name, rows, points, sections[i])
		}
	}
}

// checkCSV compares all cells: they are names and numbers of results.json.
func checkCSV(t *testing.T, r *result.Results, file string) {
	t.Helper()
	is, err := csv.NewReader(strings.NewReader(read(t, file))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	want, err := csv.NewReader(bytes.NewReader(CSV(r.Figures...))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, is); diff != "" {
		t.Errorf("%s is of other results:\n%.1000s", file, diff)
	}
}
