// Package holder starts a process that holds files for this one, so that the next process has them, however
// this one ends. Of a guest's device, it holds the VMM's connection, the guest's memory and its rings.
//
// It knows no meaning of what it holds, reads no file of it, and starts nothing else. Start needs no privilege;
// what the next process needs, is to be the same user. Linux 5.14.
//
// # Theory of operation
//
// A holder has a socket at a path, and one owner at a time, who speaks with it by messages of SOCK_SEQPACKET:
//
//	owner   'k' STATE, with files   the holder holds these in place of former ones
//	owner   'e'                     the holder ends, and with it all copies that it has
//	holder  'k' STATE, with files   the first message to an owner who has connected to the path
//
// The first owner is the process that has started it. When the owner's connection ends, the holder takes the
// next one at its path. It ends when it has neither an owner nor files, or when the other end of its
// first file is gone: nobody can go on with a connection that has ended.
package holder

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/fdpass"
	"github.com/tsugiki/tsugiki/internal/sys/forks"
	"github.com/tsugiki/tsugiki/internal/sys/pidfd"
)

// Limits of a message.
const (
	stateMax = 32 << 10 // bytes, with the first one
	filesMax = 64
)

// First bytes of messages.
const (
	keepOrder = 'k'
	endOrder  = 'e'
)

// answerPatience is how long a holder may take to answer.
const answerPatience = 10 * time.Second

// Errors of this package.
var (
	// ErrNone says that there is no holder.
	ErrNone = errors.New("nobody holds files")
	// ErrSilent says that a holder does not answer.
	ErrSilent  = errors.New("the process that holds files does not answer; somebody may have stopped it")
	errMessage = errors.New("no message of a holder's")
	errRefused = errors.New("the process that holds files has not given them")
)

// Holder is the owner's end of a holder.
type Holder struct {
	conn  *net.UnixConn
	ended chan struct{}
	pid   int // 0: this process has not started it
}

// Start starts a holder whose socket is at a path. A socket that a killed one has left there is removed.
func Start(path string) (*Holder, error) {
	h, err := start(path)
	if err != nil {
		return nil, fmt.Errorf("start a process that holds files: %w", err)
	}
	return h, nil
}

func start(path string) (*Holder, error) {
	path, err := filepath.Abs(path) // the holder is at the root
	if err != nil {
		return nil, err
	}
	listener, err := listen(path)
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	ours, theirs, err := fdpass.Pair("holder")
	if err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	defer theirs.Close()
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{childName, path}, Dir: "/", Env: []string{},
		ExtraFiles: []*os.File{listener, theirs}, SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := forks.Start(cmd); err != nil {
		return nil, errors.Join(err, ours.Close(), os.Remove(path))
	}
	pidfd.OnEnd(cmd.Process.Pid, func() { _ = cmd.Wait() })
	h := own(ours)
	h.pid = cmd.Process.Pid
	return h, nil
}

// listen makes the socket. Only its user has access to it.
func listen(path string) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	if err := unix.Fchmod(fd, 0o600); err != nil { // bind(2) gives the file this mode
		return nil, errors.Join(err, f.Close())
	}
	at, done, err := address(path)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	defer done()
	err = unix.Bind(fd, at)
	if errors.Is(err, unix.EADDRINUSE) {
		if err = Forget(path); err == nil {
			err = unix.Bind(fd, at)
		}
	}
	if err == nil {
		err = unix.Listen(fd, 1)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen at %s: %w", path, err), f.Close())
	}
	return f, nil
}

// address is that of a socket at a path, which may be longer than those of sockets. done ends it.
func address(path string) (at *unix.SockaddrUnix, done func(), err error) {
	dir, err := os.OpenFile(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, nil, err
	}
	name := fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path))
	return &unix.SockaddrUnix{Name: name}, func() { dir.Close() }, nil
}

// Open becomes the owner of the holder at a path, after the last owner has gone. It returns what the holder
// holds; the files are the caller's. Without a holder the error is ErrNone, and no socket is left. Other errors may
// pass: the holder is there.
func Open(path string) (h *Holder, state []byte, files []int, err error) {
	h, state, files, err = open(path)
	if errors.Is(err, errRefused) { // it may have been about to end, with its socket
		h, state, files, err = open(path)
	}
	return h, state, files, err
}

func open(path string) (h *Holder, state []byte, files []int, err error) {
	conn, err := dial(path)
	if err != nil {
		return nil, nil, nil, err
	}
	if err := conn.SetReadDeadline(time.Now().Add(answerPatience)); err != nil {
		return nil, nil, nil, errors.Join(err, conn.Close())
	}
	b, control := make([]byte, stateMax+1), make([]byte, unix.CmsgSpace(4*filesMax))
	n, cn, flags, err := fdpass.ReadMsg(conn, b, control)
	files = fdpass.Descriptors(control[:max(cn, 0)], nil)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = ErrSilent
	case errors.Is(err, unix.ECONNRESET), errors.Is(err, io.EOF), err == nil && n == 0:
		err = errRefused
	case err != nil:
		err = fmt.Errorf("ask for held files: %w", err)
	case b[0] != keepOrder, n > stateMax, flags&unix.MSG_CTRUNC != 0:
		err = errMessage
	default:
		err = conn.SetReadDeadline(time.Time{})
	}
	if err != nil {
		closeAll(files)
		return nil, nil, nil, errors.Join(err, conn.Close())
	}
	return own(conn), b[1:n], files, nil
}

func dial(path string) (*net.UnixConn, error) {
	at, done, err := address(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, fmt.Errorf("look for held files: %w", err)
	}
	defer done()
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: at.Name})
	switch {
	case errors.Is(err, unix.ECONNREFUSED): // it was killed
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("look for held files: %w", err)
		}
		return nil, ErrNone
	case errors.Is(err, fs.ErrNotExist):
		return nil, ErrNone
	case err != nil:
		return nil, fmt.Errorf("look for held files: %w", err)
	}
	return conn, nil
}

// own returns a Holder, and waits for its end.
func own(conn *net.UnixConn) *Holder {
	h := &Holder{conn: conn, ended: make(chan struct{})}
	go func() {
		_, _, _, _ = fdpass.ReadMsg(conn, make([]byte, 1), nil) // it says nothing more
		close(h.ended)
	}()
	return h
}

// Put has the holder hold files with a state in place of former ones. The other end of the first one is whose end
// ends the holder. The caller keeps the files. It does not wait: a holder that takes no messages is let go of.
func (h *Holder) Put(state []byte, files []int) error {
	if len(state) >= stateMax || len(files) == 0 || len(files) > filesMax {
		return h.fail(fmt.Errorf("%w: %d bytes with %d files", errMessage, len(state), len(files)))
	}
	raw, err := h.conn.SyscallConn()
	if err != nil {
		return h.fail(err)
	}
	cerr := raw.Control(func(fd uintptr) {
		_, err = unix.SendmsgN(int(fd), append([]byte{keepOrder}, state...), unix.UnixRights(files...), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	})
	if err = errors.Join(err, cerr); err != nil {
		return h.fail(fmt.Errorf("have files held: %w", err))
	}
	return nil
}

func (h *Holder) fail(err error) error { return errors.Join(err, h.conn.Close()) }

// Ended is closed when the holder is gone, or was let go of.
func (h *Holder) Ended() <-chan struct{} { return h.ended }

// End has the holder end, and waits for that. A holder that is stopped ends when it goes on.
func (h *Holder) End() error {
	defer h.conn.Close()
	err := h.conn.SetWriteDeadline(time.Now().Add(answerPatience))
	if err == nil {
		_, err = h.conn.Write([]byte{endOrder})
	}
	switch {
	case errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET), errors.Is(err, net.ErrClosed):
		return nil // it has ended, or was let go of
	case err != nil:
		return fmt.Errorf("end a process that holds files: %w", err)
	}
	select {
	case <-h.ended:
		return nil
	case <-time.After(answerPatience):
		return ErrSilent
	}
}

// Close lets go of the holder, which waits for the next owner.
func (h *Holder) Close() error { return h.conn.Close() }

// Forget ends the holder at a path, if there is one.
func Forget(path string) error {
	h, _, files, err := Open(path)
	if err != nil {
		if errors.Is(err, ErrNone) {
			return nil
		}
		return err
	}
	closeAll(files)
	return h.End()
}

func closeAll(files []int) {
	for _, file := range files {
		unix.Close(file)
	}
}
