// Package keeper starts tsugiki-keeper processes and gets sockets from them.
//
// A keeper makes sockets in a network namespace, a cgroup and under a user id
// that are not the supervisor's: see keeper/c. This package owns the
// process, its control socket and a pool of sockets per kind, filled ahead of
// need so that Socket rarely waits. It does not decide what may be made, does
// not restart a keeper that died, and never looks into a socket.
//
// Start needs CAP_SYS_ADMIN for another network namespace, and root (CAP_SETUID,
// CAP_SETGID, CAP_SETPCAP) for another user; CAP_SYS_PTRACE where a container of the keeper's user
// has very many descriptors in messages; a cgroup of its own needs write
// access to the cgroup. The oldest kernel is Linux 5.14 (cgroup.kill; starting
// in a cgroup is 5.7).
package keeper

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tsugiki/tsugiki/internal/sys/fdpass"
	"github.com/tsugiki/tsugiki/internal/sys/forks"
	"github.com/tsugiki/tsugiki/internal/sys/pidfd"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/programs"
)

// Program is the keeper's file name.
const Program = "tsugiki-keeper"

const (
	helloWait = 10 * time.Second // for a keeper's start on a loaded machine
	endWait   = 5 * time.Second  // for a killed keeper's end, see Close
	// answerWait limits the wait for an answer on a loaded machine. A keeper that has not answered
	// by then is stopped, or blocked by its container, and is killed.
	answerWait = 10 * time.Second
)

var (
	// ErrGone means that the keeper's process ended or is closed. No call of
	// this Keeper will succeed any more.
	ErrGone   = errors.New("keeper is gone")
	errSilent = fmt.Errorf("%w: it did not answer for %v, somebody may have stopped it", ErrGone, answerWait)
	// ErrFiles means that the keeper made a socket that this process could not take, because it is
	// at its limit of open files.
	ErrFiles = errors.New("this process is out of file descriptors")
)

// SocketError is the kernel's errno for socket(2), which the program would have got. Every other
// error of Socket is a fault of ours.
type SocketError struct{ Errno unix.Errno }

func (e *SocketError) Error() string { return "make socket: " + e.Errno.Error() }

// Unwrap gives the errno.
func (e *SocketError) Unwrap() error { return e.Errno }

// EpollError is the kernel's own answer to epoll_ctl(2).
type EpollError struct {
	Op    string // "add" or "del"
	Errno unix.Errno
}

func (e *EpollError) Error() string { return "epoll " + e.Op + ": " + e.Errno.Error() }

// Unwrap gives the errno.
func (e *EpollError) Unwrap() error { return e.Errno }

// Config has the namespace, the cgroup and the user of a keeper. The caller keeps the files and the
// namespace, and may close them after Start.
type Config struct {
	Binary    string       // "" looks in the usual places
	Netns     *netns.NS    // nil: the caller's
	CgroupDir *os.File     // cgroup2 directory it is created in; nil: the caller's
	Kill      *os.File     // cgroup.kill, open for writing: what it kills when this process dies; nil: nothing
	UID, GID  int          // both 0: stay root
	Log       *slog.Logger // nil: none
}

// Keeper is a running keeper process. Its methods may be called at once by
// many goroutines.
type Keeper struct {
	*client
	cmd     *exec.Cmd
	log     *slog.Logger
	closing atomic.Bool
	ended   atomic.Bool   // another process may have its process id
	reading chan struct{} // closed when the reader has ended
	done    chan struct{}
	// returned tells the keeper that its lent sockets have been taken.
	returned *os.File
}

// Start starts a keeper and waits until it has given up its privileges.
func Start(cfg Config) (*Keeper, error) {
	path := cfg.Binary
	if path == "" {
		var err error
		if path, err = programs.Find(Program); err != nil {
			return nil, fmt.Errorf("start keeper: %w", err)
		}
	}
	returned, err := newEvents()
	if err != nil {
		return nil, fmt.Errorf("start keeper: %w", err)
	}
	cmd, conn, err := launch(path, returned, cfg)
	if err != nil {
		returned.Close()
		return nil, fmt.Errorf("start keeper: %w", err)
	}
	k := &Keeper{
		cmd:      cmd,
		log:      cfg.Log,
		returned: returned,
		reading:  make(chan struct{}),
		done:     make(chan struct{}),
	}
	if k.log == nil {
		k.log = slog.New(slog.DiscardHandler)
	}
	k.client = newClient(conn, k.kill)
	k.borrow = k.take
	go func() {
		k.read()
		close(k.reading)
	}()
	pidfd.OnEnd(k.PID(), k.reap)
	k.log.Debug("keeper started", "pid", k.PID())
	return k, nil
}

// launch starts the process and waits for its greeting. On an error nothing is
// left of it.
func launch(path string, returned *os.File, cfg Config) (*exec.Cmd, *net.UnixConn, error) {
	ours, theirs, err := fdpass.Pair("keeper control")
	if err != nil {
		return nil, nil, fmt.Errorf("make control socket: %w", err)
	}
	said, stderr, err := os.Pipe()
	if err != nil {
		ours.Close()
		theirs.Close()
		return nil, nil, err
	}
	defer said.Close()
	cmd := command(path, theirs, returned, cfg)
	cmd.Stderr = stderr
	// The child is in the namespace of the thread that forks it.
	if cfg.Netns != nil {
		err = cfg.Netns.Do(func() error { return forks.Start(cmd) })
	} else {
		err = forks.Start(cmd)
	}
	theirs.Close()
	stderr.Close()
	if err != nil {
		ours.Close()
		return nil, nil, err
	}
	if err := awaitHello(ours); err != nil {
		_ = cmd.Process.Kill()
		werr := cmd.Wait() // before the socket closes, see kill
		ours.Close()
		text, _ := io.ReadAll(io.LimitReader(said, 4096))
		if len(text) > 0 {
			return nil, nil, errors.New(strings.TrimSpace(string(text)))
		}
		return nil, nil, fmt.Errorf("wait for its greeting: %w", errors.Join(err, werr))
	}
	return cmd, ours, nil
}

func command(path string, control, returned *os.File, cfg Config) *exec.Cmd {
	cmd := exec.Command(path)
	cmd.Dir = "/"
	cmd.Env = []string{}
	cmd.ExtraFiles = []*os.File{control, returned} // fds 3 and 4
	// No Pdeathsig: the signal would come when the forking thread ends, and that thread ends
	// because it was in another namespace. The keeper sees the end of its control socket instead.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if cfg.Kill != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, cfg.Kill) // fd 5
		cmd.Args = append(cmd.Args, "--kill")
	}
	if cfg.UID != 0 || cfg.GID != 0 {
		cmd.Args = append(cmd.Args, "--uid", strconv.Itoa(cfg.UID), "--gid", strconv.Itoa(cfg.GID))
	}
	if cfg.CgroupDir != nil {
		cmd.SysProcAttr.UseCgroupFD = true
		cmd.SysProcAttr.CgroupFD = int(cfg.CgroupDir.Fd())
	}
	return cmd
}

// awaitHello reads the keeper's greeting, by which it says that it is ready
// and which protocol it speaks.
func awaitHello(conn *net.UnixConn) error {
	if err := conn.SetReadDeadline(time.Now().Add(helloWait)); err != nil {
		return err
	}
	var buf [replySize + 1]byte
	n, _, _, err := fdpass.ReadMsg(conn, buf[:], nil)
	if err != nil {
		return err
	}
	r, err := parseReply(buf[:n])
	if err != nil {
		return err
	}
	if r.op != opHello {
		return fmt.Errorf("%w: no greeting", errProtocol)
	}
	return conn.SetReadDeadline(time.Time{})
}

// kill ends the process. The control socket stays open until the process has ended. Otherwise the
// keeper could take its closing for the supervisor's death and kill the container.
func (k *Keeper) kill() {
	if err := k.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		k.log.Warn("kill keeper", "pid", k.PID(), "error", err)
	}
}

// reap waits for the process's end and lets go of everything.
func (k *Keeper) reap() {
	k.ended.Store(true)
	_ = k.cmd.Wait() // how it ended is in ProcessState
	k.fail(fmt.Errorf("%w: %v", ErrGone, k.cmd.ProcessState))
	if !k.closing.Load() {
		k.log.Warn("keeper ended", "pid", k.PID(), "state", k.cmd.ProcessState.String(), "cause", k.cause())
	}
	k.conn.Close()
	<-k.reading
	k.returned.Close()
	close(k.done)
}

func newEvents() (*os.File, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make eventfd: %w", err)
	}
	return os.NewFile(uintptr(fd), "keeper events"), nil
}

// take takes sockets out of the keeper's table. It needs CAP_SYS_PTRACE.
func (k *Keeper) take(numbers []int) ([]int, error) {
	process, err := pidfd.OpenFD(k.PID())
	if err != nil {
		return nil, err
	}
	defer process.Close()
	if k.ended.Load() { // the opened process may be another one
		return nil, ErrGone
	}
	var fds []int
	for _, number := range numbers {
		fd, err := process.File(number)
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
			break
		}
		if err != nil {
			return fds, err
		}
		fds = append(fds, fd)
	}
	_, err = k.returned.Write(binary.NativeEndian.AppendUint64(nil, 1))
	return fds, err
}

// PID is the keeper's process id.
func (k *Keeper) PID() int { return k.cmd.Process.Pid }

// Done returns a channel that is closed when the process has been reaped and all its resources here
// are closed.
func (k *Keeper) Done() <-chan struct{} { return k.done }

// Close ends the process and closes the sockets nobody asked for. Calls under
// way return ErrGone at once. It does not kill the container: only this
// process's death without Close does that.
//
// A container can block its keeper inside epoll_ctl, where a kill has no effect (see keeper/c).
// Close then gives up after some seconds and says so; the process ends by itself as soon as the
// container does.
func (k *Keeper) Close() error {
	k.closing.Store(true)
	k.fail(ErrGone)
	k.kill()
	t := time.NewTimer(endWait)
	defer t.Stop()
	select {
	case <-k.done:
		return nil
	case <-t.C:
		return fmt.Errorf("close keeper: process %d has not ended %v after its kill", k.PID(), endWait)
	}
}
