package graft

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/sys/thread"
	"github.com/tsugiki/tsugiki/keeper"
)

// A unix endpoint carries TCP only. A unix socket replaces the program's stream socket. The program
// then sees the unix socket's names, and misses TCP options.

// unixPatience is how long a connect waits while the listener's backlog is full. Then it fails like
// a connect whose SYNs are dropped.
const unixPatience = 2 * time.Second

// connectUnix connects the program's socket to an endpoint's path, with the
// program's user and group, which the listener may ask for (SO_PEERCRED).
func (e *Engine) connectUnix(p Program, number int, s *socket, ep *endpoint.Endpoint) (Answer, error) {
	if s.typ != unix.SOCK_STREAM {
		return fail(unix.EPROTOTYPE), nil
	}
	file, err := e.unixSocket(s.typ)
	if err != nil {
		return answerFor(err)
	}
	defer unix.Close(file)
	err = asUserOf(p, func() error {
		at, err := e.openSocket(ep.Path)
		if err != nil {
			return err
		}
		defer at.close()
		return connectPatiently(file, at.name)
	})
	if errors.Is(err, fs.ErrNotExist) {
		return fail(unix.ECONNREFUSED), nil // no server has ever listened there
	}
	if err != nil {
		return answerFor(refusal(err))
	}
	return e.replaceByUnix(p, number, s, file)
}

func connectPatiently(file int, path string) error {
	deadline := time.Now().Add(unixPatience)
	for {
		err := unix.Connect(file, &unix.SockaddrUnix{Name: path})
		if !errors.Is(err, unix.EAGAIN) {
			return err
		}
		if time.Now().After(deadline) {
			return unix.ETIMEDOUT
		}
		time.Sleep(time.Millisecond)
	}
}

// listenAtPath makes a bind(2) a bind at an endpoint's path. It replaces a socket file without a
// listener, which a killed server leaves.
func (e call) listenAtPath(p Program, number int, s *socket, ep *endpoint.Endpoint) (Answer, error) {
	if s.typ != unix.SOCK_STREAM {
		return fail(unix.EPROTOTYPE), nil
	}
	file, err := e.unixSocket(s.typ)
	if err != nil {
		return answerFor(err)
	}
	defer unix.Close(file)
	if err := e.bindPath(p, file, s.typ, ep.Path); err != nil {
		return answerFor(err)
	}
	return e.replaceByUnix(p, number, s, file)
}

// bindPath binds a unix socket with the program's user and group.
func (e *Engine) bindPath(p Program, file, typ int, path string) error {
	made := madeSocket{path: path}
	err := asUserOf(p, func() error {
		at, err := e.openFolder(path)
		if err != nil {
			return err
		}
		defer at.close()
		err = unix.Bind(file, &unix.SockaddrUnix{Name: at.name})
		if errors.Is(err, unix.EADDRINUSE) && removeIfDead(at.name, typ) {
			err = unix.Bind(file, &unix.SockaddrUnix{Name: at.name})
		}
		if err != nil {
			return err
		}
		return unix.Lstat(at.name, &made.st)
	})
	if err != nil {
		return refusal(err)
	}
	e.pathsMu.Lock()
	defer e.pathsMu.Unlock()
	// The earlier listener at the path has gone.
	e.paths = append(slices.DeleteFunc(e.paths, func(m madeSocket) bool { return m.path == path }), made)
	return nil
}

func removeIfDead(path string, typ int) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != fs.ModeSocket {
		return false
	}
	probe, err := unix.Socket(unix.AF_UNIX, typ|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer unix.Close(probe)
	if !errors.Is(unix.Connect(probe, &unix.SockaddrUnix{Name: path}), unix.ECONNREFUSED) {
		return false
	}
	return os.Remove(path) == nil
}

// unixSocket makes a unix socket that does not block, so that the engine does not block either. The
// socket is in the container's own namespace. Paths can be reached from any namespace, but from the
// host's namespace the program could also connect the socket to the host's abstract sockets.
func (e *Engine) unixSocket(typ int) (int, error) {
	k, err := e.Own.Maker()
	if err != nil {
		return -1, err
	}
	return k.Socket(keeper.Kind{Family: unix.AF_UNIX, Type: typ | unix.SOCK_NONBLOCK})
}

func (e *Engine) replaceByUnix(p Program, number int, s *socket, file int) (Answer, error) {
	if err := copyFlags(s, file); err != nil {
		return Answer{}, err
	}
	k, err := e.host.Maker()
	if err != nil {
		return Answer{}, err
	}
	if err := e.replaceAll(p, k, number, s, file); err != nil {
		return Answer{}, err
	}
	e.Log.Debug("swapped", "pid", p.Thread(), "fd", number, "type", endpoint.Unix)
	return Answer{Action: Succeed}, nil
}

// asUserOf runs fn on a thread of its own with the program's effective user and group, which decide
// what fn may open and what its peers see.
func asUserOf(p Program, fn func() error) error {
	uid, gid, err := p.User()
	if err != nil {
		return err
	}
	return thread.Do(func() error {
		if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
			return fmt.Errorf("drop our groups: %w", errno)
		}
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, ^uintptr(0), uintptr(gid), ^uintptr(0)); errno != 0 {
			return fmt.Errorf("take the program's group: %w", errno)
		}
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
			return fmt.Errorf("take the program's user: %w", errno)
		}
		return fn()
	})
}
