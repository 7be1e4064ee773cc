// Package launch starts a program in a network namespace and a cgroup, under a seccomp filter,
// with a container's capabilities. It gives the filter's listener to its caller.
//
// It knows neither sockets nor rules. Start needs CAP_SYS_ADMIN (namespace,
// filter), CAP_SYS_PTRACE (listener) and CAP_SETPCAP, and Linux 5.7.
//
// # Theory of operation
//
// The parent executes the launcher as a child in the cgroup (CLONE_INTO_CGROUP). One
// thread of the child enters the namespace and installs the filter. The child sends the number
// of the listener to the parent and waits. The parent duplicates the listener by
// pidfd_getfd(2), which the filter cannot trap, and releases the child. The thread drops its
// privileges and executes the program. execve(2) closes the control socket; so the parent
// learns that the program runs. A failure before that is an error of Start, and the program
// has not run.
package launch

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/pidfd"
)

// argv0 is the first argument of the child. IsChild recognizes it.
const argv0 = "tsugiki: launch"

// Program is the file name of the launcher that comes with tsugiki. It starts in a third of the
// time that tsugiki takes.
const Program = "tsugiki-launch"

// Spec describes the program to start.
type Spec struct {
	Launcher  string   // path of a program that calls Child; empty: this program
	Path      string   // of the program, see Lookup
	Args      []string // of the program; the first is its name
	Netns     *os.File // a network namespace
	CgroupDir *os.File // a directory of the cgroup v2 hierarchy
	Filter    []unix.SockFilter
	Caps      Capabilities
	User      *User // nil: the user of this process
	// Preload is the path of a library to add to LD_PRELOAD; empty: none.
	Preload string
	// NeedsPreload makes it an error if the program's user cannot read the library.
	NeedsPreload bool
}

// User is the user of the program.
type User struct {
	UID, GID int
	Groups   []int
}

// order is the message from the parent to the child, in a file in memory.
//
// Strings that a program's user chooses are bytes here: JSON would change those that are not UTF-8.
// (encoding/gob keeps them, and takes a millisecond of each start for its tables.)
type order struct {
	Path   []byte
	Args   [][]byte
	Filter []unix.SockFilter
	Caps   Capabilities
	User   *User

	Preload      []byte
	NeedsPreload bool
}

// report is a message from the child to the parent. The first has the number of the listener.
// A second one has an error; there is none if the child has executed the program.
type report struct {
	Listener int
	Error    string
	Errno    syscall.Errno // of exec
}

// ExecError means that the program could not be executed.
type ExecError struct {
	Path  string
	Errno syscall.Errno
}

func (e *ExecError) Error() string { return fmt.Sprintf("execute %s: %s", e.Path, e.Errno.Error()) }

// Unwrap returns the errno.
func (e *ExecError) Unwrap() error { return e.Errno }

// Lookup finds a program in PATH, as a shell does. It returns an ExecError for a program that
// cannot be executed.
func Lookup(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil || errors.Is(err, exec.ErrDot) {
		return path, nil
	}
	var errno syscall.Errno
	switch {
	case errors.As(err, &errno):
	case errors.Is(err, fs.ErrPermission):
		errno = syscall.EACCES
	default:
		errno = syscall.ENOENT
	}
	return "", &ExecError{name, errno}
}

// Process is a program that was started. It inherits the standard streams, working directory,
// environment, process group and terminal of this process, and its files without close-on-exec.
type Process struct{ PID int }

// Start starts a program and returns when it runs or has failed. It calls serve with the
// filter's listener and the child's PID before the program can make its first call. The
// listener is serve's to close from then on, unless serve fails.
func Start(spec Spec, serve func(listener *os.File, pid int) error) (*Process, error) {
	control, child, err := start(spec)
	if err != nil {
		return nil, fmt.Errorf("start program: %w", err)
	}
	defer control.Close()
	p := &Process{PID: child}
	if err := p.handOver(control, serve); err != nil {
		_ = unix.Kill(child, unix.SIGKILL)
		_, _ = unix.Wait4(child, nil, 0, nil)
		var e *ExecError
		if errors.As(err, &e) {
			e.Path = spec.Path
		}
		return nil, err
	}
	return p, nil
}

func start(spec Spec) (control *os.File, pid int, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, 0, err
	}
	control, theirs := os.NewFile(uintptr(pair[0]), "launch"), os.NewFile(uintptr(pair[1]), "launch")
	defer theirs.Close()
	o := order{[]byte(spec.Path), nil, spec.Filter, spec.Caps, spec.User, []byte(spec.Preload), spec.NeedsPreload}
	for _, arg := range spec.Args {
		o.Args = append(o.Args, []byte(arg))
	}
	orders, err := writeOrder(o)
	if err != nil {
		control.Close()
		return nil, 0, err
	}
	defer orders.Close()
	ns, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", spec.Netns.Fd()))
	if err != nil {
		control.Close()
		return nil, 0, err
	}
	defer ns.Close()
	args := []string{argv0}
	for _, f := range []*os.File{theirs, orders, ns} {
		// The child keeps the numbers that the files have here. Other numbers may belong to
		// files that our caller passes to the program.
		if _, err := unix.FcntlInt(f.Fd(), unix.F_SETFD, 0); err != nil {
			control.Close()
			return nil, 0, err
		}
		args = append(args, strconv.Itoa(int(f.Fd())))
	}
	proc, err := os.StartProcess(cmp.Or(spec.Launcher, "/proc/self/exe"), args, &os.ProcAttr{
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Env:   os.Environ(),
		Sys:   &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(spec.CgroupDir.Fd())},
	})
	if err != nil {
		control.Close()
		return nil, 0, err
	}
	pid = proc.Pid
	_ = proc.Release()
	return control, pid, nil
}

// writeOrder writes the order into a file in memory. Arguments may be larger than the buffer of
// a pipe or a socket.
func writeOrder(o order) (*os.File, error) {
	fd, err := unix.MemfdCreate("order", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "order")
	if err = json.NewEncoder(f).Encode(o); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (p *Process) handOver(control *os.File, serve func(*os.File, int) error) error {
	lines := bufio.NewReader(control)
	r, err := readReport(lines)
	if err != nil {
		return err
	}
	child, err := pidfd.OpenFD(p.PID)
	if err != nil {
		return fmt.Errorf("open child: %w", err)
	}
	defer child.Close()
	fd, err := child.File(r.Listener)
	if err != nil {
		return fmt.Errorf("take seccomp listener from child: %w", err)
	}
	listener := os.NewFile(uintptr(fd), "seccomp listener")
	if err := serve(listener, p.PID); err != nil {
		listener.Close()
		return err
	}
	if _, err := control.Write([]byte{'\n'}); err != nil {
		return fmt.Errorf("release child: %w", err)
	}
	if _, err := readReport(lines); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

func readReport(lines *bufio.Reader) (report, error) {
	var r report
	line, err := lines.ReadBytes('\n')
	if err != nil {
		return r, fmt.Errorf("wait for child: %w", err)
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return r, fmt.Errorf("wait for child: %w", err)
	}
	if r.Errno != 0 {
		return r, &ExecError{Errno: r.Errno}
	}
	if r.Error != "" {
		return r, errors.New(strings.TrimSpace(r.Error))
	}
	return r, nil
}
