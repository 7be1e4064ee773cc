package arch

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestFileLengths refuses files that nobody reads in one go. Nobody reads generated ones.
func TestFileLengths(t *testing.T) {
	const most = 450
	for _, file := range filesOf(t, ".go", ".c", ".h", ".py", ".sh", ".rs") {
		generated := strings.HasSuffix(file, "_bpfel.go") || strings.HasPrefix(filepath.Base(file), "zz_generated.")
		if n := linesOf(t, file); n > most && !generated {
			t.Errorf("%s has %d lines, at most %d are allowed: split it by subject", file, n, most)
		}
	}
}

// TestLargePackagesHaveTests refuses large packages of the product that only tests of other
// packages run.
func TestLargePackagesHaveTests(t *testing.T) {
	const most = 2500
	for _, p := range packages(t) {
		folder := strings.TrimPrefix(p.ImportPath, module+"/")
		lines := 0
		for _, file := range p.GoFiles {
			lines += linesOf(t, filepath.Join(folder, file))
		}
		if lines > most && len(p.TestGoFiles)+len(p.XTestGoFiles) == 0 {
			t.Errorf("%s has %d lines and no tests of its own", folder, lines)
		}
	}
}

// TestMapIsShort keeps docs/ARCHITECTURE.md a map. What a part does in detail is in docs/design.
func TestMapIsShort(t *testing.T) {
	const most = 2100
	if n := len(strings.Fields(read(t, "../../docs/ARCHITECTURE.md"))); n > most {
		t.Errorf("docs/ARCHITECTURE.md has %d words, at most %d are allowed", n, most)
	}
}

func linesOf(t *testing.T, file string) int {
	return strings.Count(read(t, filepath.Join("../..", file)), "\n")
}
