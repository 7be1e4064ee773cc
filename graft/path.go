package graft

import (
	"errors"
	"io/fs"
	"path"
	"strconv"

	"golang.org/x/sys/unix"
)

// Who has an annotation heard may often write in the folder of its unix endpoint as well,
// and could put a symbolic link there once the agent has looked at it: to a socket of the
// host. Where Config.NoSymlinks is set, a path is therefore opened without following one
// (openat2(2), Linux 5.6), and from then on named by the open file. The name of a listening
// socket, as its peers see it, is then /proc/thread-self/fd/N/FILE.

// socketName is a name for a path, as connect(2) and bind(2) of a unix socket take it.
type socketName struct {
	name string
	fd   int // that the name leads through; or less than 0
}

func (n socketName) close() {
	if n.fd >= 0 {
		unix.Close(n.fd)
	}
}

// openSocket names a socket, to connect to.
func (e *Engine) openSocket(file string) (socketName, error) {
	if !e.NoSymlinks {
		return socketName{file, -1}, nil
	}
	return openPath(file, 0, "")
}

// openFolder names a file, to be made.
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

// Close removes the sockets that the container's listeners have in the file system, where
// nobody has put something else.
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
