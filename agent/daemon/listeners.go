package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/agent/container"
	"github.com/tsugiki/tsugiki/agent/httpapi"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/internal/sys/fdpass"
	"github.com/tsugiki/tsugiki/internal/sys/poll"
)

// OCI runtimes send the listener of a container's filter to a unix socket, after the filter is on
// the program and before the program runs. tsugiki run does the same. With the listener comes one
// JSON object, the container process state of the runtime specification (config-linux.md,
// "Seccomp"). Its metadata is the token that the container got when it was registered. A runtime
// does not wait and gets no answer. A sender that closes its side reads {} or {"error": "..."}.
//
// The gate pool keeps the socket while there is no daemon. So an engine can execute programs in a
// container meanwhile: their listeners and their calls wait in the socket for the next daemon. That
// daemon ends no container before it has attached all programs that waited: the first program may
// come after another one has been attached and has ended.

const (
	listenerPatience = 10 * time.Second // for a message to come in
	stateMax         = 1 << 20          // of a message, in bytes
	filesMax         = 8                // beside a message
	listenersAtOnce  = 64
)

var (
	errNoListener = errors.New("no seccomp listener came with the container's state")
	// An engine may end a container while it executes a program in it, as for a health check.
	errEnded = errors.New("its container has ended")
)

// listeners accepts the listeners of filters.
type listeners struct {
	d       *Daemon
	socket  net.Listener
	waiting syscall.Conn // the socket, to ask whether a sender waits
	path    string
	serving sync.WaitGroup
}

func (d *Daemon) listenForFilters() (*listeners, error) {
	l := &listeners{d: d, path: filepath.Join(d.runDir, api.ListenerSocket)}
	socket, err := l.takeKept()
	if err == nil && socket == nil {
		socket, err = l.make()
	}
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w; choose another directory with --run-dir", l.path, err)
	}
	l.waiting, l.socket = socket.(*net.UnixListener), d.guard(socket)
	l.serving.Add(1)
	go l.serve()
	return l, nil
}

// make makes the socket, and notes its inode, by which the next daemon knows it.
func (l *listeners) make() (net.Listener, error) {
	socket, err := httpapi.ListenAt(l.path)
	if err != nil {
		return nil, err
	}
	if l.d.filterSocket, err = duplicate(socket.(*net.UnixListener)); err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	inode, err := gate.Inode(l.d.filterSocket)
	if err == nil {
		err = os.WriteFile(l.note(), []byte(strconv.FormatUint(inode, 10)), 0o600)
	}
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	return socket, nil
}

// duplicate returns another descriptor of a listener. Unlike the result of UnixListener.File, its
// Fd leaves the socket nonblocking, so that Close ends an Accept.
func duplicate(l *net.UnixListener) (*os.File, error) {
	raw, err := l.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	cerr := raw.Control(func(old uintptr) { fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) })
	if err = errors.Join(cerr, err); err != nil {
		return nil, fmt.Errorf("duplicate the socket: %w", err)
	}
	return os.NewFile(uintptr(fd), "socket for listeners"), nil
}

// note returns the path of the file with the inode of the socket.
func (l *listeners) note() string { return l.path + ".inode" }

// takeKept takes the socket that a gate pool has kept; nil if there is none.
func (l *listeners) takeKept() (net.Listener, error) {
	text, err := os.ReadFile(l.note())
	if err != nil {
		return nil, nil // this is the first daemon here
	}
	inode, err := strconv.ParseUint(string(text), 10, 64)
	if err != nil {
		return nil, nil // a daemon was killed before it had written the note
	}
	if _, err := os.Lstat(l.path); err != nil {
		return nil, nil // nobody can connect to it
	}
	kept, err := gate.Kept(inode)
	if kept == nil || err != nil {
		return nil, err
	}
	l.d.filterSocket = kept
	return net.FileListener(kept)
}

func (l *listeners) serve() {
	defer l.serving.Done()
	slots := make(chan struct{}, listenersAtOnce)
	var early sync.WaitGroup // senders that waited when the daemon started
	for starting := true; ; {
		if starting && !poll.Readable(l.waiting) {
			starting = false
			l.serving.Add(1)
			go func() {
				defer l.serving.Done()
				early.Wait()
				l.d.endEarly()
			}()
		}
		conn, err := l.socket.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of files: senders that come meanwhile wait
			l.d.log.Error("take seccomp listener", "err", err)
			time.Sleep(10 * time.Millisecond)
			continue
		}
		slots <- struct{}{}
		l.serving.Add(1)
		done := l.serving.Done
		if starting {
			early.Add(1)
			done = func() { early.Done(); l.serving.Done() }
		}
		go func() {
			defer done()
			defer conn.Close()
			l.take(conn.(*net.UnixConn))
			<-slots
		}()
	}
}

func (l *listeners) close() error {
	err := errors.Join(l.socket.Close(), l.d.filterSocket.Close())
	l.serving.Wait()
	if len(l.d.all()) > 0 {
		return err // a gate pool keeps it
	}
	l.d.poolMu.Lock()
	defer l.d.poolMu.Unlock()
	if l.d.pool != nil && !l.d.pool.Ended() {
		err = errors.Join(err, l.d.pool.KeepNothing())
	}
	for _, path := range []string{l.path, l.note()} {
		if rm := os.Remove(path); !errors.Is(rm, os.ErrNotExist) {
			err = errors.Join(err, rm)
		}
	}
	return err
}

func (l *listeners) take(conn *net.UnixConn) {
	log := l.d.log
	sender, err := checkSender(conn)
	if err == nil {
		log, err = l.attach(conn, sender)
	}
	var result any = struct{}{}
	if err != nil {
		level := slog.LevelError
		if errors.Is(err, errEnded) {
			level = slog.LevelInfo
		}
		log.Log(context.Background(), level, "program not attached", "err", err)
		result = api.Failure{Error: httpapi.OneLine(err)}
	}
	_ = json.NewEncoder(conn).Encode(result) // a sender that does not wait misses it
}

// checkSender refuses all senders but root and our user, and returns the sender's pid. It cannot
// check more, because a runtime does not wait for the check. The token says to which container a
// sender may attach.
func checkSender(conn *net.UnixConn) (pid int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	cerr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(cerr, err); err != nil {
		return 0, fmt.Errorf("find out who sends a seccomp listener: %w", err)
	}
	if cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
		return 0, fmt.Errorf("user %d may not attach programs; root may", cred.Uid)
	}
	return int(cred.Pid), nil
}

// attach reads a message and acts on it. The returned log names the program, as far as it is known.
//
// If a program cannot be attached, its listener ends when the files are closed, and each of its
// trapped calls fails with ENOSYS. A program of one of our containers is killed too, because it
// could not know the reason for ENOSYS.
func (l *listeners) attach(conn *net.UnixConn, sender int) (*slog.Logger, error) {
	log := l.d.log
	if err := conn.SetReadDeadline(time.Now().Add(listenerPatience)); err != nil {
		return log, err
	}
	data, files, err := receive(conn)
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	if err != nil {
		return log, fmt.Errorf("receive seccomp listener: %w", err)
	}
	state, at, err := parseState(data)
	if err != nil {
		return log, err
	}
	log = log.With("pid", state.Pid)
	// The program may have ended and left its work to a child.
	var program *container.Process
	if state.Pid != 0 {
		program, err = container.OpenProcess(state.Pid)
	}
	if program != nil {
		defer program.Close()
	} else if err != nil && !container.HasEnded(err) {
		return log, err
	}
	m := l.d.findToken(state.Metadata)
	came := at < len(files) && isListener(files[at]) // out of files, the kernel drops it
	switch {
	case m == nil && !came:
		return log, errNoListener
	case m == nil && l.d.hasEnded(state.Metadata):
		return log, fmt.Errorf("process %d: %w", state.Pid, errEnded)
	case m == nil:
		return log, fmt.Errorf("process %d: no container is registered by that token; its listener is closed, so its socket calls fail; start the container again", state.Pid)
	}
	log = log.With("container", m.Name)
	if !came {
		return log, m.giveUp(program, sender, errNoListener)
	}
	listener := files[at]
	files = slices.Delete(files, at, at+1)
	if err := m.attach(listener, state.Pid); err != nil {
		err = m.giveUp(program, sender, err)
		return log, fmt.Errorf("container %s: %w", m.Name, errors.Join(err, listener.Close()))
	}
	m.log.Info("program attached", "pid", state.Pid)
	return log, nil
}

// giveUp kills a program that cannot be attached, if it is proven to be the container's: a message
// may name any process.
func (m *managed) giveUp(program *container.Process, sender int, reason error) error {
	if program == nil {
		return reason // it is gone
	}
	if !m.has(program) && !program.IsOf(sender) {
		return fmt.Errorf("%w; process %d is not shown to be the container's: it lives, and the socket calls of whatever had the listener fail", reason, program.PID)
	}
	return errors.Join(fmt.Errorf("%w; its program is killed", reason), program.Kill())
}

// has tells whether a process is in the container's group of programs.
func (m *managed) has(p *container.Process) bool {
	group := m.ProgramsGroup()
	return group != "" && p.IsIn(group)
}

// receive reads until the sender closes its side, or has said one JSON object.
func receive(conn *net.UnixConn) (data []byte, files []*os.File, err error) {
	buf, oob := make([]byte, 64<<10), make([]byte, unix.CmsgSpace(4*filesMax))
	for {
		n, oobn, _, _, err := conn.ReadMsgUnix(buf, oob)
		files = append(files, fdpass.Files(oob[:oobn], "received")...)
		data = append(data, buf[:n]...)
		switch {
		case len(data) > stateMax || len(files) > filesMax:
			return nil, files, fmt.Errorf("more than %d bytes or %d files", stateMax, filesMax)
		case json.Valid(data):
			return data, files, nil
		case errors.Is(err, io.EOF) || err == nil && n == 0:
			return nil, files, io.ErrUnexpectedEOF
		case err != nil:
			return nil, files, err
		}
	}
}

// parseState reads a container process state, and finds which of the files that
// came with it is the listener. The process is 0 if it is not known: crun's exec
// does not say which one it is.
func parseState(data []byte) (*specs.ContainerProcessState, int, error) {
	var s specs.ContainerProcessState
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, 0, fmt.Errorf("read container process state: %w", err)
	}
	at := slices.Index(s.Fds, specs.SeccompFdName)
	if at < 0 {
		return nil, 0, errors.New("read container process state: it names no " + specs.SeccompFdName)
	}
	if s.Pid < 0 {
		return nil, 0, fmt.Errorf("read container process state: %d is no process", s.Pid)
	}
	return &s, at, nil
}

// isListener tells whether a file is a seccomp listener.
func isListener(f *os.File) bool {
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	return err == nil && name == "anon_inode:seccomp notify"
}
