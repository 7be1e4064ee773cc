package folder

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// What killed runs have left is removed, and nothing of those that live.
func TestMake(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	make := func() *Folder {
		f, err := Make("bench-*")
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	killed := make()
	lives := make()
	if _, err := os.Stat(killed.Path); err != nil {
		t.Errorf("the folder of a run that lives: %v", err)
	}
	if err := errors.Join(os.WriteFile(filepath.Join(killed.Path, "left"), nil, 0o600), killed.lock.Close()); err != nil {
		t.Fatal(err)
	}
	next := make()
	if _, err := os.Stat(killed.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder of a killed run is still there: %v", err)
	}
	if _, err := os.Stat(lives.Path); err != nil {
		t.Errorf("the folder of a run that lives: %v", err)
	}
	if err := errors.Join(lives.Remove(), next.Remove()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(next.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder that was removed is still there: %v", err)
	}
}
