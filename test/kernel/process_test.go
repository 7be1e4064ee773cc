package kernel

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// A test that needs another process starts this test binary again in a named
// role. The two talk in lines: what the child says, the test hears, and the
// other way round.

const roleEnv = "KERNELTEST_ROLE"

// roles are what a child can be. Test files add theirs in init.
var roles = map[string]func(*child){}

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		runtime.LockOSThread()
		roles[role](&child{in: bufio.NewReader(os.NewFile(3, "in")), out: os.NewFile(4, "out")})
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child is the process's own end of the conversation.
type child struct {
	in  *bufio.Reader
	out *os.File
}

// firstFile is the number of the first file given to start.
const firstFile = 5

func (c *child) say(format string, args ...any) { fmt.Fprintf(c.out, format+"\n", args...) }

// hear waits for the test's next word. It ends the process if there is none.
func (c *child) hear() string {
	line, err := c.in.ReadString('\n')
	if err != nil {
		os.Exit(0)
	}
	return strings.TrimSpace(line)
}

// check ends the process, and so fails the test, on an unexpected error.
func (c *child) check(what string, err error) {
	if err != nil {
		c.say("%s: %v", what, err)
		os.Exit(1)
	}
}

// trap installs a seccomp filter that hands the given system calls of this
// thread to the test, which takes the listener before the call returns. The
// child keeps no listener of its own.
func (c *child) trap(flags int, calls ...uintptr) {
	listener, err := installFilter(flags|unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, unix.SECCOMP_RET_USER_NOTIF, calls...)
	c.check("install filter", err)
	c.say("%d", listener)
	c.hear()
	unix.Close(listener)
}

// installFilter gives this thread a filter that answers action for some system
// calls and lets all others pass. (A filter for real use must also look at the
// architecture.)
func installFilter(flags int, action uint32, calls ...uintptr) (listener int, err error) {
	insns := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}}
	for _, nr := range calls {
		insns = append(insns,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(nr), Jf: 1},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action})
	}
	insns = append(insns, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return -1, err
	}
	prog := unix.SockFprog{Len: uint16(len(insns)), Filter: &insns[0]}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		uintptr(flags), uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// process is the test's end.
type process struct {
	*exec.Cmd
	pid   int
	pidfd int
	in    *os.File
	heard chan string
}

// start starts a child in a role, in the caller's network namespace. Its
// files get the numbers from firstFile on. It is killed when the test ends.
func start(t *testing.T, role string, attr *unix.SysProcAttr, files ...int) *process {
	t.Helper()
	needRoot(t)
	stdin, in, err := os.Pipe()
	try(t, "make pipe", err)
	out, stdout, err := os.Pipe()
	try(t, "make pipe", err)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleEnv+"="+role)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = attr
	cmd.ExtraFiles = []*os.File{stdin, stdout}
	for _, fd := range files {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		try(t, "duplicate file", err)
		cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(uintptr(dup), "file"))
	}
	try(t, "start "+role, cmd.Start())
	for _, f := range cmd.ExtraFiles {
		f.Close()
	}
	p := &process{Cmd: cmd, pid: cmd.Process.Pid, in: in, heard: make(chan string, 64)}
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			p.heard <- lines.Text()
		}
		close(p.heard)
	}()
	t.Cleanup(func() { p.kill(); in.Close(); out.Close() })
	p.pidfd, err = unix.PidfdOpen(p.pid, 0)
	try(t, "open pidfd", err)
	t.Cleanup(func() { unix.Close(p.pidfd) })
	return p
}

func (p *process) say(format string, args ...any) { fmt.Fprintf(p.in, format+"\n", args...) }

// hear waits for what the child says next.
func (p *process) hear(t *testing.T) string {
	t.Helper()
	select {
	case line, ok := <-p.heard:
		if !ok {
			t.Fatal("child ended without a word")
		}
		return line
	case <-time.After(testkit.Patience):
		t.Fatalf("child says nothing for %v", testkit.Patience)
		return ""
	}
}

// hearInts reads the numbers that the child says.
func (p *process) hearInts(t *testing.T, numbers ...*int) {
	t.Helper()
	line := p.hear(t)
	for i, word := range strings.Fields(line) {
		if i < len(numbers) {
			if _, err := fmt.Sscan(word, numbers[i]); err != nil {
				t.Fatalf("child says %q, want numbers", line)
			}
		}
	}
}

// sleepsIn tells whether a thread of the child is asleep in a system call (proc_pid_syscall(5)).
func (p *process) sleepsIn(tid int, nr uintptr) bool {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/syscall", p.pid, tid))
	return strings.HasPrefix(string(text), fmt.Sprint(nr, " "))
}

// slept is how often a thread of the child has gone to sleep by itself.
func (p *process) slept(t *testing.T, tid int) (times int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/status", p.pid, tid))
	try(t, "read status", err)
	_, count, _ := strings.Cut(string(text), "\nvoluntary_ctxt_switches:")
	_, err = fmt.Sscan(count, &times)
	try(t, "count switches", err)
	return times
}

// kill ends the child and waits until it is gone.
func (p *process) kill() {
	p.Process.Kill()
	p.Wait()
}

// getfd duplicates a descriptor of the child.
func (p *process) getfd(t *testing.T, number int) int {
	t.Helper()
	fd, err := unix.PidfdGetfd(p.pidfd, number, 0)
	try(t, "pidfd_getfd", err)
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// takeListener takes the listener that the child's trap made.
func (p *process) takeListener(t *testing.T) listener {
	t.Helper()
	var number int
	p.hearInts(t, &number)
	fd := p.getfd(t, number)
	p.say("taken")
	return listener(fd)
}

// noRestart makes a handled signal interrupt the system calls of this process,
// as a handler without SA_RESTART does. The runtime installs its handlers with.
func noRestart(sig unix.Signal) error {
	const saRestart = 0x10000000
	var action struct {
		handler  uintptr
		flags    uint64
		restorer uintptr
		mask     uint64
	}
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), 0, uintptr(unsafe.Pointer(&action)), 8, 0, 0)
	if errno == 0 {
		action.flags &^= saRestart
		_, _, errno = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
	}
	if errno != 0 {
		return errno
	}
	return nil
}
