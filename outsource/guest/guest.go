// Package guest is the front end in a virtual machine: it starts a program under a seccomp filter, and
// has the host make the program's TCP sockets (package host). The guest's datagrams leave by a TUN device.
//
// It decides nothing about addresses: the host does. A guest needs no network card. It needs CAP_SYS_PTRACE
// and CAP_SYS_ADMIN in the guest, or that the program is the user's own and gets no more privileges
// (no_new_privs); for datagrams, CAP_NET_ADMIN of one supervisor; Linux 5.9 with vsock, and tun.
//
// # Theory of operation
//
// Run starts itself again as a child. The child installs the filter on its thread, sends the filter's
// listener to its parent, and executes the program. The parent answers the trapped calls
// (supervisor.go), until the last program under the filter has ended.
//
// A socket of a program is one of the guest's kernel until it connects, or binds what a rule covers.
// Then a vsock socket takes its place, under the same numbers. The names of the vsock socket say which
// of the host's sockets it stands for, so a supervisor knows sockets of another one, too.
package guest

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/fdpass"
	"github.com/tsugiki/tsugiki/internal/sys/seccomp"
)

// Program is a program to run.
type Program struct {
	Path string   // of the file
	Args []string // the first is its name
	Log  *slog.Logger
}

// Run runs a program and returns how it ended, after the last program that it left behind has ended.
// Without a host that answers, it starts nothing.
func Run(p Program) (unix.WaitStatus, error) {
	c := newControl()
	c.mu.Lock()
	err := c.open()
	own := c.own
	c.mu.Unlock()
	if err != nil {
		return 0, err
	}
	var h holder
	if err := h.serve(own, p.Log); err != nil && !hasDevice() {
		p.Log.Warn("UDP stays in the guest", "err", err)
	}
	cmd, l, err := start(p)
	if err != nil {
		return 0, err
	}
	defer unix.Close(int(l))
	s := &supervisor{control: c, listener: l, log: p.Log, queues: newQueues()}
	served := make(chan error, 1)
	go func() { served <- s.serve() }()
	status, err := wait(cmd)
	err = errors.Join(err, <-served)
	h.flush()
	return status, err
}

// childName is the child's name for itself.
const childName = "tsugiki: guest"

// start starts the child, and takes the listener.
func start(p Program) (*exec.Cmd, seccomp.Listener, error) {
	ours, theirs, err := fdpass.Pair("guest")
	if err != nil {
		return nil, -1, fmt.Errorf("start program: %w", err)
	}
	defer ours.Close()
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: append([]string{childName, p.Path}, p.Args...),
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, ExtraFiles: []*os.File{theirs},
	}
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		return nil, -1, fmt.Errorf("start program: %w", err)
	}
	l, err := take(ours.ReadMsgUnix)
	if err == nil {
		_, err = ours.Write([]byte{0})
	}
	if err == nil { // the child's end closes when it executes the program
		b := make([]byte, 8)
		if n, _ := ours.Read(b); n > 0 {
			errno, _ := strconv.Atoi(string(b[:n]))
			err = &ExecError{p.Path, unix.Errno(errno)}
		}
	}
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if l >= 0 {
			unix.Close(int(l))
		}
		return nil, -1, err
	}
	return cmd, l, nil
}

// take takes the listener out of the child's message.
func take[T any](read func(b, oob []byte) (n, oobn, flags int, addr T, err error)) (seccomp.Listener, error) {
	b, oob := make([]byte, 256), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := read(b, oob)
	if err != nil {
		return -1, fmt.Errorf("start program: %w", err)
	}
	fds := fdpass.Descriptors(oob[:oobn], nil)
	if len(fds) != 1 {
		return -1, fmt.Errorf("start program: %s", b[:n])
	}
	return seccomp.Listener(fds[0]), nil
}

// ExecError means that the program could not be executed.
type ExecError struct {
	Path  string
	Errno unix.Errno
}

func (e *ExecError) Error() string { return fmt.Sprintf("execute %s: %s", e.Path, e.Errno.Error()) }

// Unwrap returns the errno.
func (e *ExecError) Unwrap() error { return e.Errno }

// IsChild reports whether this process is the child of Run. Then main calls Child.
func IsChild() bool { return len(os.Args) > 2 && os.Args[0] == childName }

// Child does the work of the child, and does not return.
func Child() {
	const control = 3 // the first of ExtraFiles
	runtime.LockOSThread()
	unix.CloseOnExec(control)
	err := become(control, os.Args[1], os.Args[2:])
	var errno unix.Errno
	if e := new(ExecError); errors.As(err, &e) {
		errno = e.Errno
		_, _ = unix.Write(control, []byte(strconv.Itoa(int(errno))))
	} else {
		_, _ = unix.Write(control, []byte(err.Error()))
	}
	os.Exit(1)
}

// become executes the program. It returns only with an error.
func become(control int, path string, args []string) error {
	if unix.Geteuid() != 0 {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("give up new privileges: %w", err)
		}
	}
	l, err := install()
	if err != nil {
		return err
	}
	if err := unix.Sendmsg(control, []byte{0}, unix.UnixRights(int(l)), nil, 0); err != nil {
		return fmt.Errorf("send the filter's listener: %w", err)
	}
	unix.Close(int(l))
	var ack [1]byte
	if n, err := unix.Read(control, ack[:]); n != 1 {
		return fmt.Errorf("wait for the supervisor: %w", err)
	}
	err = syscall.Exec(path, args, os.Environ())
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return &ExecError{path, errno}
	}
	return err
}

// wait waits for the program, and passes on what others tell this process to do. A terminal's signals
// reach both.
func wait(cmd *exec.Cmd) (unix.WaitStatus, error) {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH)
	signal.Ignore(unix.SIGINT, unix.SIGQUIT)
	ended := make(chan struct{})
	go func() {
		for {
			select {
			case sig := <-signals:
				_ = cmd.Process.Signal(sig)
			case <-ended:
				return
			}
		}
	}()
	err := cmd.Wait()
	close(ended)
	signal.Stop(signals)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, fmt.Errorf("wait for program: %w", err)
	}
	return unix.WaitStatus(cmd.ProcessState.Sys().(syscall.WaitStatus)), nil
}
