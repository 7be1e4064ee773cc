package bundle

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// ErrMissing says that a program or a package is missing; the error's text names both.
var ErrMissing = errors.New("is missing")

// applets of busybox have links in /bin; the others are called as "busybox NAME".
var applets = []string{
	"cat", "chmod", "cp", "dd", "echo", "env", "false", "find", "head", "httpd", "ip", "ls", "mkdir", "nc", "nproc",
	"printf", "ps", "rm", "sed", "sh", "sleep", "sync", "tail", "test", "touch", "tr", "true", "wc", "wget", "yes",
}

// Root is a folder that is, or is copied to, the root file system of containers. It has
// folders, files and symbolic links only.
type Root string

// Make makes the folder with what programs expect, and busybox with links for the applets
// of use.
func (r Root) Make() error {
	for _, name := range []string{"bin", "dev", "etc", "home", "proc", "run", "sys", "var/lib", "var/log"} {
		if err := os.MkdirAll(r.path(name), 0o755); err != nil {
			return err
		}
	}
	if err := errors.Join(os.Mkdir(r.path("tmp"), 0o755), os.Chmod(r.path("tmp"), 0o777|os.ModeSticky)); err != nil {
		return err
	}
	for path, text := range map[string]string{
		"/etc/passwd": "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
		"/etc/group":  "root:x:0:\nnogroup:x:65534:\n",
		"/etc/hosts":  "127.0.0.1 localhost\n",
	} {
		if err := r.Put(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	if _, err := exec.LookPath("busybox"); err != nil {
		return fmt.Errorf("busybox %w: install the package busybox-static", ErrMissing)
	}
	if err := r.Install("busybox"); err != nil {
		return err
	}
	for _, name := range applets {
		if err := os.Symlink("busybox", r.path("bin", name)); err != nil {
			return err
		}
	}
	return nil
}

func (r Root) path(parts ...string) string {
	return filepath.Join(append([]string{string(r)}, parts...)...)
}

// Put writes a file, and makes its folders. It replaces a file or a link of that name.
func (r Root) Put(path string, data []byte, mode os.FileMode) error {
	to, err := r.makeWay(path)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, mode)
}

// makeWay makes the folders of a file, and removes what has its name: through a link of an
// applet, busybox would be overwritten.
func (r Root) makeWay(path string) (string, error) {
	to := r.path(path)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return "", err
	}
	if err := os.Remove(to); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	return to, nil
}

// Install copies programs of the machine, by name or path, into /bin, and their libraries
// to where they are on the machine. A program replaces the applet of its name.
func (r Root) Install(list ...string) error {
	for _, program := range list {
		path, err := exec.LookPath(program)
		if err != nil {
			return fmt.Errorf("install %s in containers: it %w", program, ErrMissing)
		}
		libraries, err := Libraries(path)
		if err != nil {
			return err
		}
		files := map[string]string{filepath.Join("/bin", filepath.Base(path)): path}
		for _, library := range libraries {
			files[library] = library
		}
		for name, from := range files {
			to, err := r.makeWay(name)
			if err == nil {
				err = copyFile(to, from, 0o755)
			}
			if err != nil {
				return fmt.Errorf("install %s in containers: %w", program, err)
			}
		}
	}
	return nil
}

func copyFile(to, from string, mode os.FileMode) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Chmod(mode), out.Close())
}

// CopyTo copies the root file system to another folder.
func (r Root) CopyTo(dir string) error {
	return filepath.WalkDir(string(r), func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(string(r), path)
		if err != nil {
			return err
		}
		target := filepath.Join(dir, rel)
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			return errors.Join(os.MkdirAll(target, 0o755), os.Chmod(target, info.Mode()))
		case info.Mode()&os.ModeSymlink != 0:
			link, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(link, target)
		}
		return copyFile(target, path, info.Mode().Perm())
	})
}
