package report

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/tsugiki/tsugiki/density/result"
)

// committed is the folder of the study that is in docs, if there is one.
const committed = "../../docs/density"

// committedLimit is for the whole folder, in bytes.
const committedLimit = 500 << 10

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

// TestCommitted checks that the files of the committed study are what its results.json
// gives with this code.
func TestCommitted(t *testing.T) {
	r := loadCommitted(t)
	if r == nil {
		return // docs have no study
	}
	dir := t.TempDir()
	if err := Write(r, dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{PageFile, CSVFile, MarkdownFile} {
		is, err := os.ReadFile(filepath.Join(committed, name))
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(is, want) {
			t.Errorf("docs/density/%s is of other code; run: tsugiki density report docs/density", name)
		}
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
