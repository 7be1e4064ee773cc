package programs

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestFindIn(t *testing.T) {
	none, some := t.TempDir(), t.TempDir()
	want := filepath.Join(some, "tool")
	if err := os.WriteFile(want, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(none, "tool"), nil, 0o644); err != nil { // cannot be run
		t.Fatal(err)
	}
	if _, err := FindIn("tool", []string{none}); !errors.Is(err, ErrMissing) {
		t.Errorf("nowhere: %v, want %v", err, ErrMissing)
	}
	if got, err := FindIn("tool", []string{none, some}); got != want || err != nil {
		t.Errorf("found %q (%v), want %q", got, err, want)
	}
}

func TestLibraries(t *testing.T) {
	libraries, err := Libraries("/bin/ls")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(libraries, func(path string) bool { return strings.HasPrefix(filepath.Base(path), "libc.so") }) {
		t.Errorf("of ls: %v, want the C library too", libraries)
	}
	for _, path := range libraries {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
	if libraries, err := Libraries("/bin/busybox"); err != nil || len(libraries) > 0 {
		t.Errorf("of a static program: %v, %v", libraries, err)
	}
	if _, err := Libraries("/etc/passwd"); err == nil {
		t.Error("of a text: no error")
	}
}
