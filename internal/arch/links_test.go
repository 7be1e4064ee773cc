package arch

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

var (
	mdLink    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	mdHeading = regexp.MustCompile("^#{1,6} +(.*?)[ #]*$")
	mdSpan    = regexp.MustCompile("`[^`]*`")
)

// TestLinks checks that each relative link of each page leads to a file, and to a heading of
// it where the link names one.
func TestLinks(t *testing.T) {
	pages := pagesOf(t)
	for _, page := range pages {
		for line, text := range proseOf(t, page) {
			for _, m := range mdLink.FindAllStringSubmatch(mdSpan.ReplaceAllString(text, ""), -1) {
				if err := followLink(t, page, m[1]); err != nil {
					t.Errorf("%s:%d: %v", page, line+1, err)
				}
			}
		}
	}
}

// pagesOf lists the Markdown pages of the tree.
func pagesOf(t *testing.T) []string { return filesOf(t, ".md") }

// filesOf lists the files of the tree whose names end in one of the given ways. Hidden folders are
// left out, but for .github.
func filesOf(t *testing.T, ends ...string) (files []string) {
	t.Helper()
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		file, err := filepath.Rel("../..", path)
		if d.IsDir() && strings.HasPrefix(file, ".") && file != "." && !below(file, []string{".github"}) {
			return fs.SkipDir
		}
		if slices.ContainsFunc(ends, func(end string) bool { return strings.HasSuffix(file, end) }) {
			files = append(files, file)
		}
		return err
	})
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files were found: %v", len(files), err)
	}
	return files
}

// followLink finds out whether a link leads somewhere. Other sites are not asked.
func followLink(t *testing.T, page, link string) error {
	if strings.Contains(link, "://") || strings.HasPrefix(link, "mailto:") {
		return nil
	}
	path, anchor, _ := strings.Cut(link, "#")
	target := page
	if path != "" {
		target = filepath.Join(filepath.Dir(page), path)
	}
	if _, err := os.Stat(filepath.Join("../..", target)); err != nil {
		return fmt.Errorf("link %s: there is no %s", link, target)
	}
	if anchor != "" && !anchorsOf(t, target)[anchor] {
		return fmt.Errorf("link %s: %s has no such heading", link, target)
	}
	return nil
}

// proseOf returns the lines of a page; those of code blocks are empty.
func proseOf(t *testing.T, page string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", page))
	if err != nil {
		t.Fatal(err)
	}
	lines, code := strings.Split(string(text), "\n"), false
	for i, l := range lines {
		fence := strings.HasPrefix(strings.TrimSpace(l), "```")
		if fence {
			code = !code
		}
		if fence || code {
			lines[i] = ""
		}
	}
	return lines
}

// anchorsOf returns the anchors that GitHub gives the headings of a page.
func anchorsOf(t *testing.T, page string) map[string]bool {
	t.Helper()
	anchors, seen := map[string]bool{}, map[string]int{}
	for _, l := range proseOf(t, page) {
		m := mdHeading.FindStringSubmatch(l)
		if m == nil {
			continue
		}
		a := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, m[1])
		n := seen[a]
		seen[a]++
		if n > 0 {
			a = fmt.Sprintf("%s-%d", a, n)
		}
		anchors[a] = true
	}
	return anchors
}
