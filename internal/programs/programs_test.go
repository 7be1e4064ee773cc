package programs

import (
	"errors"
	"os"
	"path/filepath"
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
