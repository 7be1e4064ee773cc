package install

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// files lists regular files and symbolic links below a folder.
func files(folder string) (list []string, err error) {
	err = filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		if kind := e.Type(); kind != 0 && kind != fs.ModeSymlink {
			return fmt.Errorf("%s is neither a file nor a link", path)
		}
		name, err := filepath.Rel(folder, path)
		list = append(list, name)
		return err
	})
	return list, err
}

// change is a file that is written beside its place, and takes the place later by a rename. An equal file
// is not written: programs may run of it, and others map it.
type change struct {
	path  string
	top   string             // a folder around it that stays when it is empty
	write func(string) error // writes the file at a path
}

// atStep is called when something on the disk has changed. Tests end the process there.
var atStep = func() {}

// next is where a file is written before it takes its place. One process installs at a time.
func next(path string) string { return path + ".next" }

// stage writes all files beside their places. When it fails, nothing of them is left: a disk that is full
// has the files of before.
func stage(list []change) (err error) {
	for i, c := range list {
		if err = os.MkdirAll(filepath.Dir(c.path), 0o755); err == nil {
			err = c.write(next(c.path))
		}
		if err != nil {
			return errors.Join(fmt.Errorf("write %s: %w", c.path, err), unstage(list[:i+1]))
		}
		atStep()
	}
	return nil
}

// unstage removes what stage has written, with the folders that it has made.
func unstage(list []change) (err error) {
	for _, c := range list {
		err = errors.Join(err, removeFile(next(c.path)))
		removeEmpty(filepath.Dir(c.path), c.top)
	}
	return err
}

// commit has the files take their places.
func commit(list []change) error {
	for _, c := range list {
		if err := os.Rename(next(c.path), c.path); err != nil {
			return err
		}
		atStep()
	}
	return nil
}

// copied is the change that has a file be as another one, or a link be a link to the same. It is none if
// the file is so already.
func copied(from, to, top string) ([]change, error) {
	st, err := os.Lstat(from)
	if err != nil {
		return nil, err
	}
	if st.Mode().Type() == fs.ModeSymlink {
		target, err := os.Readlink(from)
		if now, none := os.Readlink(to); err != nil || none == nil && now == target {
			return nil, err
		}
		return []change{{to, top, func(path string) error {
			if err := removeFile(path); err != nil {
				return err
			}
			return os.Symlink(target, path)
		}}}, nil
	}
	if is, err := same(from, to); err != nil || is {
		return nil, err
	}
	return []change{{to, top, func(path string) error {
		source, err := os.Open(from)
		if err != nil {
			return err
		}
		defer source.Close()
		return create(path, source, st.Mode().Perm())
	}}}, nil
}

// text is the change that has a file have a content.
func text(path, top string, content []byte, mode fs.FileMode) change {
	return change{path, top, func(path string) error { return create(path, bytes.NewReader(content), mode) }}
}

// create writes a file onto the disk.
func create(path string, content io.Reader, mode fs.FileMode) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	atStep()
	return errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
}

// same tells whether two files have the same mode and content. The second one need not exist.
func same(a, b string) (bool, error) {
	var modes [2]fs.FileMode
	var texts [2][]byte
	for i, path := range []string{a, b} {
		st, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) && path == b {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if modes[i] = st.Mode(); !modes[i].IsRegular() || modes[i] != modes[0] {
			return false, nil
		}
		if texts[i], err = os.ReadFile(path); err != nil {
			return false, err
		}
	}
	return bytes.Equal(texts[0], texts[1]), nil
}

// remove removes a file that may be gone, and what a killed process has left of a newer one. Folders
// that are empty then are removed too, up to top.
func remove(path, top string) error {
	err := errors.Join(removeFile(path), removeFile(next(path)))
	atStep()
	removeEmpty(filepath.Dir(path), top)
	return err
}

// removeFile removes a file that may be gone.
func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// removeEmpty removes a folder if it is empty, and those around it, up to top, which stays. Mounts of a pod
// stay: they are in use.
func removeEmpty(dir, top string) {
	for dir != top && os.Remove(dir) == nil {
		dir = filepath.Dir(dir)
	}
}
