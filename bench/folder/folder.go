// Package folder makes folders that a bench which is killed leaves for the next run to
// remove.
//
// It owns the lock that tells the folder of a bench that lives from that of one which
// was killed, and nothing of what is in it. It needs no privileges.
package folder

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/tsugiki/tsugiki/internal/sys/lock"
)

// Folder is one that is ours as long as we live.
type Folder struct {
	Path string
	lock *os.File
}

// Make makes a folder whose name is after a pattern of os.MkdirTemp, and removes those
// of its kind that killed runs have left. The caller removes it.
func Make(pattern string) (*Folder, error) {
	old, err := filepath.Glob(filepath.Join(os.TempDir(), pattern))
	if err != nil {
		return nil, err
	}
	for _, path := range old {
		lock, err := lock.Open(path)
		if err != nil {
			continue // somebody's who lives
		}
		if err := (&Folder{path, lock}).Remove(); err != nil {
			return nil, fmt.Errorf("remove what a killed run has left: %w", err)
		}
	}
	path, err := os.MkdirTemp("", pattern)
	if err != nil {
		return nil, err
	}
	lock, err := lock.Open(path)
	if err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	return &Folder{path, lock}, nil
}

// Remove removes the folder with all that is in it.
func (f *Folder) Remove() error { return errors.Join(os.RemoveAll(f.Path), f.lock.Close()) }
