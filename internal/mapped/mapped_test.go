package mapped

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

const (
	magic = "mappedT1"
	size  = HeaderSize + 100
)

func open(t *testing.T, path string, check func([]byte) error) *File {
	t.Helper()
	f, err := Open(path, magic, size, 0, check)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.File.Close() })
	return f
}

func TestDataSurvives(t *testing.T) {
	path := filepath.Join(t.TempDir(), "table")
	f := open(t, path, nil)
	copy(f.Data[HeaderSize:], "hello")
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	f = open(t, path, nil)
	if got := string(f.Data[HeaderSize : HeaderSize+5]); got != "hello" || f.Aside != "" {
		t.Errorf("%q, aside %q", got, f.Aside)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v (%v)", st.Mode(), err)
	}
}

func TestWhatIsNotOurs(t *testing.T) {
	for name, c := range map[string]struct {
		harm  func(path string) error
		aside bool
	}{
		"killed while it was made": {func(p string) error { return os.Truncate(p, 0) }, false},
		"killed before the header": {func(p string) error { return patch(p, 0, make([]byte, 44)) }, false},
		"another boot":             {func(p string) error { return patch(p, 8, []byte("0")) }, false},
		"another version":          {func(p string) error { return patch(p, 0, []byte("mappedT0")) }, true},
		"another size":             {func(p string) error { return os.Truncate(p, size-1) }, true},
		"readable by others":       {func(p string) error { return os.Chmod(p, 0o644) }, true},
		"somebody else's":          {func(p string) error { return os.Chown(p, 1, 0) }, true},
		"refused":                  {func(p string) error { return patch(p, HeaderSize, []byte("evil!")) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "table")
			f := open(t, path, nil)
			copy(f.Data[HeaderSize:], "hello")
			if f.Data[8] == '0' {
				f.Data[8] = '1'
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			if err := c.harm(path); err != nil {
				t.Fatal(err)
			}
			f = open(t, path, func(data []byte) error {
				if bytes.HasPrefix(data[HeaderSize:], []byte("evil!")) {
					return errors.New("evil")
				}
				return nil
			})
			if got := bytes.Trim(f.Data[HeaderSize:], "\x00"); len(got) != 0 {
				t.Errorf("it has %q", got)
			}
			_, err := os.Stat(path + ".bad")
			if aside := err == nil; aside != c.aside || (f.Aside != "") != c.aside {
				t.Errorf("put aside: %v, said %q", aside, f.Aside)
			}
		})
	}
}

func patch(path string, at int64, with []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt(with, at)
	return err
}

func TestNotAFile(t *testing.T) {
	dir := t.TempDir()
	link, fifo := filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	if err := errors.Join(os.Symlink("/etc/hostname", link), unix.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, fifo, dir, filepath.Join(dir, "missing", "file")} {
		if _, err := Open(path, magic, size, 0, nil); err == nil {
			t.Errorf("%s: no error", path)
		}
	}
}

// One has it at a time; who waits gets it, also when it is put aside meanwhile.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "table")
	f := open(t, path, nil)
	if _, err := Open(path, magic, size, 20*time.Millisecond, nil); !errors.Is(err, ErrBusy) {
		t.Errorf("a second one: %v, want %v", err, ErrBusy)
	}
	tries := 0
	defer func(was func()) { beforeLock = was }(beforeLock)
	beforeLock = func() {
		if tries++; tries != 3 { // before that, somebody else has it
			return
		}
		if err := errors.Join(os.Rename(path, path+".old"), f.Close()); err != nil {
			t.Error(err)
		}
	}
	got, err := Open(path, magic, size, testkit.Patience, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	if tries != 4 {
		t.Errorf("it tried %d times, want 4: the third was the file that was renamed", tries)
	}
	ours, err1 := got.File.Stat()
	named, err2 := os.Stat(path)
	if err := errors.Join(err1, err2); err != nil || !os.SameFile(ours, named) {
		t.Errorf("it opened the file that was renamed (%v)", err)
	}
}

func TestText(t *testing.T) {
	var field [4]byte
	if err := SetText(field[:], "abc"); err != nil {
		t.Error(err)
	}
	if err := SetText(field[:], "z"); err != nil || field != [4]byte{'z'} {
		t.Errorf("%q (%v), want what was there before gone", field, err)
	}
	for _, bad := range []string{"abcd", "a\x00"} {
		if err := SetText(field[:], bad); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
	if got, whole := Text([]byte("ab\x00d")); got != "ab" || !whole {
		t.Errorf("%q, %v", got, whole)
	}
	if _, whole := Text([]byte("abcd")); whole {
		t.Error("a field without an end is whole")
	}
}
