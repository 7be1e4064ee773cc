package graft

import (
	"errors"
	"io/fs"
	"path"
	"strconv"

	"golang.org/x/sys/unix"
)

// The author of an annotation may often also write in the folder of its unix endpoint. After the
// agent has checked the path, the author could put a symbolic link to a socket of the host there.
// So where Config.NoSymlinks is set, the engine opens a path without following symbolic links
// (openat2(2), Linux 5.6), and then uses only the open file. The peers of a listening socket then
// see the name /proc/thread-self/fd/N/FILE.

// socketName is a name for a path that connect(2) and bind(2) of a unix socket take.
type socketName struct {
	name string
	fd   int // through which the name leads; or less than 0
}

func (n socketName) close() {
	if n.fd >= 0 {
		unix.Close(n.fd)
	}
}

// openSocket returns the name of a socket, to connect to it.
func (e *Engine) openSocket(file string) (socketName, error) {
	if !e.NoSymlinks {
		return socketName{file, -1}, nil
	}
	return openPath(file, 0, "")
}

// openFolder returns the name of a file that will be made.
func (e *Engine) openFolder(file string) (socketName, error) {
	if !e.NoSymlinks {
		return socketName{file, -1}, nil
	}
	return openPath(path.Dir(file), unix.O_DIRECTORY, path.Base(file))
}

func openPath(opened string, flags uint64, below string) (socketName, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC | flags, Resolve: unix.RESOLVE_NO_SYMLINKS}
	fd, err := unix.Openat2(unix.AT_FDCWD, opened, &how)
	if err != nil {
		return socketName{}, err
	}
	return socketName{path.Join("/proc/thread-self/fd", strconv.Itoa(fd), below), fd}, nil
}

// madeSocket is a socket that a listener of the container has in the file system.
type madeSocket struct {
	path string
	st   unix.Stat_t
}

// Close removes the sockets of the container's listeners from the file system, unless another file
// is at the path.
func (e *Engine) Close() error {
	e.pathsMu.Lock()
	defer e.pathsMu.Unlock()
	errs := []error{e.closeGuards()}
	for _, made := range e.paths {
		if err := e.remove(made); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	e.paths = nil
	return errors.Join(errs...)
}

func (e *Engine) remove(made madeSocket) error {
	at, err := e.openFolder(made.path)
	if err != nil {
		return err
	}
	defer at.close()
	var st unix.Stat_t
	if err := unix.Lstat(at.name, &st); err != nil || st.Dev != made.st.Dev || st.Ino != made.st.Ino {
		return err
	}
	return unix.Unlink(at.name)
}
