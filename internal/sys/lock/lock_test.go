package lock

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// open opens a file that is made if there is none.
func open(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestTake(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	f, other := open(t, path), open(t, path)
	if err := Take(f); err != nil {
		t.Fatal(err)
	}
	if err := Take(other); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("locked twice: %v", err)
	}
	if _, err := Open(path); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("opened and locked: %v", err)
	}
	waited := make(chan error, 1)
	go func() { waited <- Wait(other) }()
	f.Close()
	if err := <-waited; err != nil {
		t.Errorf("waited for: %v", err)
	}
	other.Close()
	again, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	folder, err := Open(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	folder.Close()
	if err := Take(folder); err == nil {
		t.Error("a closed file is locked")
	}
}

// A lock of a file counts as long as the file has its name.
func TestTakeNamed(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(path string) error
		counts  bool
		fails   bool
	}{
		"nothing happens":     {func(string) error { return nil }, true, false},
		"it is removed":       {os.Remove, false, false},
		"it is renamed":       {func(p string) error { return os.Rename(p, p+".old") }, false, false},
		"another is in place": {func(p string) error { return errors.Join(os.Remove(p), os.WriteFile(p, nil, 0o600)) }, false, false},
		"it is written":       {func(p string) error { return os.WriteFile(p, []byte("x"), 0o600) }, true, false},
		"somebody locks it": {func(p string) error {
			f, err := Open(p)
			t.Cleanup(func() { f.Close() })
			return err
		}, false, false},
		"a loop is in place": {func(p string) error { return errors.Join(os.Remove(p), os.Symlink(p, p)) }, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "a name\nwith (blanks)")
			f := open(t, path)
			if err := c.happens(path); err != nil {
				t.Fatal(err)
			}
			if counts, err := TakeNamed(f, path); counts != c.counts || (err != nil) != c.fails {
				t.Errorf("it counts: %v (%v)", counts, err)
			}
		})
	}
}

// The lock of a process that was killed is free when its children have let go of it.
func TestTakeFromKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	f, other := open(t, path), open(t, path)
	if err := Take(f); err != nil {
		t.Fatal(err)
	}
	was := patience
	patience = 0
	err := TakeFromKilled(other)
	if patience = was; !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("of one that lives: %v", err)
	}
	taken := make(chan error, 1)
	go func() { taken <- TakeFromKilled(other) }()
	f.Close()
	if err := <-taken; err != nil {
		t.Errorf("of one that is gone: %v", err)
	}
}
