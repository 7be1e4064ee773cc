package graft

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// rootProgram is a program of which only the user is asked.
type rootProgram struct{ Program }

func (rootProgram) User() (uid, gid int, err error) { return 0, 0, nil }

func unixSocket(t *testing.T) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// listenAt is a server of the host.
func listenAt(t *testing.T, path string) {
	t.Helper()
	fd := unixSocket(t)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 8)); err != nil {
		t.Fatal(err)
	}
}

// folders has a folder "given", the folder "host" with a server, and links from the first
// to the second.
func folders(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(os.Mkdir(filepath.Join(dir, "given"), 0o755), os.Mkdir(filepath.Join(dir, "host"), 0o755),
		os.Symlink("../host", filepath.Join(dir, "given/folder")), os.Symlink("../host/server", filepath.Join(dir, "given/file")))
	if err != nil {
		t.Fatal(err)
	}
	listenAt(t, filepath.Join(dir, "host/server"))
	listenAt(t, filepath.Join(dir, "given/server"))
	return dir
}

// A path that stood in an annotation leads to no other folder; one of the administrator
// leads wherever he says.
func TestPathsOfUnixEndpoints(t *testing.T) {
	dir := folders(t)
	for _, c := range []struct {
		path       string
		noSymlinks bool
		want       error
	}{
		{"given/server", true, nil},
		{"given/server", false, nil},
		{"given/file", true, unix.ELOOP},
		{"given/file", false, nil},
		{"given/folder/server", true, unix.ELOOP},
		{"given/folder/server", false, nil},
		{"given/none", true, unix.ENOENT},
		{"given/none", false, unix.ENOENT},
	} {
		e := &Engine{Config: Config{NoSymlinks: c.noSymlinks}}
		at, err := e.openSocket(filepath.Join(dir, c.path))
		if err == nil {
			err = connectPatiently(unixSocket(t), at.name)
			at.close()
		}
		if !errors.Is(err, c.want) {
			t.Errorf("connect to %s, no symbolic links %v: %v", c.path, c.noSymlinks, err)
		}
	}
	for _, c := range []struct {
		path       string
		noSymlinks bool
		want       error
	}{
		{"given/new", true, nil},
		{"given/new2", false, nil},
		{"given/folder/new", true, unix.ELOOP},
		{"given/folder/new2", false, nil},
	} {
		e := &Engine{Config: Config{NoSymlinks: c.noSymlinks}}
		path := filepath.Join(dir, c.path)
		err := e.bindPath(rootProgram{}, unixSocket(t), unix.SOCK_STREAM, path)
		_, there := os.Lstat(path)
		if (err == nil) != (c.want == nil) || (there == nil) != (c.want == nil) {
			t.Errorf("bind %s, no symbolic links %v: %v, %v", c.path, c.noSymlinks, err, there)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", c.path, err)
		}
	}
}

// A server that is started again and again at a path is remembered once.
func TestPathIsBoundAgain(t *testing.T) {
	path := filepath.Join(folders(t), "server")
	e := &Engine{}
	for range 3 { // none of them listens
		if err := e.bindPath(rootProgram{}, unixSocket(t), unix.SOCK_STREAM, path); err != nil {
			t.Fatal(err)
		}
		if len(e.paths) != 1 {
			t.Errorf("%d sockets at one path", len(e.paths))
		}
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is left: %v", err)
	}
}

// What has taken the place of a listener's socket is not removed.
func TestCloseRemovesOnlyItsOwn(t *testing.T) {
	dir := folders(t)
	host := filepath.Join(dir, "host/server")
	for name, swap := range map[string]func(path string) error{
		"the folder is a link": func(path string) error {
			return errors.Join(os.RemoveAll(filepath.Dir(path)), os.Symlink("host", filepath.Dir(path)))
		},
		"the file is a link":    func(path string) error { return errors.Join(os.Remove(path), os.Symlink(host, path)) },
		"the file is another's": func(path string) error { return errors.Join(os.Remove(path), os.WriteFile(path, nil, 0o600)) },
	} {
		for _, noSymlinks := range []bool{true, false} {
			path := filepath.Join(dir, "own", "server")
			if err := errors.Join(os.RemoveAll(filepath.Dir(path)), os.Mkdir(filepath.Dir(path), 0o755)); err != nil {
				t.Fatal(err)
			}
			e := &Engine{Config: Config{NoSymlinks: noSymlinks}}
			if err := e.bindPath(rootProgram{}, unixSocket(t), unix.SOCK_STREAM, path); err != nil {
				t.Fatal(err)
			}
			if err := swap(path); err != nil {
				t.Fatal(err)
			}
			err := e.Close()
			if _, gone := os.Lstat(path); gone != nil {
				t.Errorf("%s, no symbolic links %v: it is removed (%v)", name, noSymlinks, err)
			}
			if _, gone := os.Lstat(host); gone != nil {
				t.Fatalf("%s, no symbolic links %v: the host's server is removed (%v)", name, noSymlinks, err)
			}
		}
	}
}
