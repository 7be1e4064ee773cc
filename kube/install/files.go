package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// recordFile is the record of what was installed, in Prefix.
const recordFile = "installed.json"

// record is what was written on the node: the files in Prefix, and digests of the agent's
// configuration.
type record struct {
	Files   []string `json:"files"`
	Configs []string `json:"configs"`
}

func (o *Options) readRecord() (r record, err error) {
	path := o.node(filepath.Join(Prefix, recordFile))
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	for _, name := range r.Files {
		if err == nil && !filepath.IsLocal(name) {
			err = fmt.Errorf("file %q is not in the folder", name)
		}
	}
	if err != nil {
		return r, fmt.Errorf("read the record of an earlier installation, %s: %w", path, err)
	}
	return r, nil
}

func (o *Options) writeRecord(r record) error {
	for _, list := range []*[]string{&r.Files, &r.Configs} {
		slices.Sort(*list)
		*list = slices.DeleteFunc(slices.Compact(*list), func(s string) bool { return s == "" })
	}
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	path := o.node(filepath.Join(Prefix, recordFile))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return replace(path, func(f *os.File) error {
		_, err := f.Write(append(text, '\n'))
		return errors.Join(err, f.Chmod(0o644))
	})
}

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

// copy has a file of the node be that of the image. An equal one is not written: programs may run
// of it, and others map it.
func (o *Options) copy(name string) error {
	from, to := filepath.Join("/", o.Image, Prefix, name), o.node(filepath.Join(Prefix, name))
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	st, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if st.Mode().Type() == fs.ModeSymlink {
		return copyLink(from, to)
	}
	if is, err := same(from, to); err != nil || is {
		return err
	}
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	return replace(to, func(f *os.File) error {
		_, err := io.Copy(f, source)
		return errors.Join(err, f.Chmod(st.Mode().Perm()))
	})
}

func copyLink(from, to string) error {
	target, err := os.Readlink(from)
	if err != nil {
		return err
	}
	if now, err := os.Readlink(to); err == nil && now == target {
		return nil
	}
	if err := os.Remove(next(to)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, next(to)); err != nil {
		return err
	}
	return os.Rename(next(to), to)
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

// next is where a file is written before it takes its place. One process installs at a time.
func next(path string) string { return path + ".next" }

// replace writes a new file, and renames it to the path when it is on the disk.
func replace(path string, write func(*os.File) error) error {
	f, err := os.Create(next(path))
	if err != nil {
		return err
	}
	err = errors.Join(write(f), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// remove removes a file that may be gone, and what a killed process has left of a newer one. Folders
// that are empty then are removed too, up to top. Mounts of a pod stay: they are in use.
func remove(path, top string) error {
	for _, p := range []string{path, next(path)} {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for dir := path; dir != top; {
		if dir = filepath.Dir(dir); os.Remove(dir) != nil {
			break
		}
	}
	return nil
}
