// Relied upon: /proc/PID/fdinfo/N tells the flags of a descriptor and of its
// file (O_CLOEXEC, O_NONBLOCK) and the inode. A descriptor of that file that
// is kept open gives the current state at every pread from 0: also that N was
// closed (ENOENT), or is another file now. It belongs to the process, not to the
// process id: when the process is gone it fails, and never tells of another
// process that got the same id.
//
// Since: Linux 3.x; the inode 5.14.
// By: intercept/notify (flags to keep over a swap; knows its sockets by inode).

package kernel

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

func init() {
	roles["fdinfo"] = func(c *child) {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		c.check("make socket", err)
		c.say("%d", fd)
		for _, step := range []func() error{
			func() error { return unix.SetNonblock(fd, true) },
			func() error { _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); return err },
			func() error { return unix.Close(fd) },
			func() error { return unix.Dup3(int(c.out.Fd()), fd, 0) },
		} {
			c.hear()
			c.check("next step", step())
			c.say("done")
		}
		c.hear()
	}
}

type fdinfo struct {
	cloexec, nonblock bool
	inode             uint64
}

func parseFdinfo(text []byte) (info fdinfo) {
	if m := regexp.MustCompile(`(?m)^flags:\s+([0-7]+)$`).FindSubmatch(text); m != nil {
		flags, _ := strconv.ParseUint(string(m[1]), 8, 64)
		info.cloexec, info.nonblock = flags&unix.O_CLOEXEC != 0, flags&unix.O_NONBLOCK != 0
	}
	if m := regexp.MustCompile(`(?m)^ino:\s+(\d+)$`).FindSubmatch(text); m != nil {
		info.inode, _ = strconv.ParseUint(string(m[1]), 10, 64)
	}
	return info
}

func TestFdinfoThatIsKeptOpen(t *testing.T) {
	p := start(t, "fdinfo", nil)
	var number int
	p.hearInts(t, &number)
	path := fmt.Sprintf("/proc/%d/fdinfo/%d", p.pid, number)
	file, err := os.Open(path)
	try(t, "open fdinfo", err)
	defer file.Close()
	read := func() (fdinfo, error) {
		buf := make([]byte, 4096)
		n, err := unix.Pread(int(file.Fd()), buf, 0)
		return parseFdinfo(buf[:max(n, 0)]), err
	}
	check := func(what string, info fdinfo) {
		t.Helper()
		got, err := read()
		try(t, "read fdinfo", err)
		want(t, what, got, info)
	}
	step := func() {
		p.say("next step")
		want(t, "child", p.hear(t), "done")
	}

	var st unix.Stat_t
	try(t, "stat", unix.Stat(fmt.Sprintf("/proc/%d/fd/%d", p.pid, number), &st))
	if first, _ := read(); first.inode == 0 {
		t.Skip("skip: needs Linux 5.14: inode in fdinfo")
	}
	check("at first", fdinfo{true, false, st.Ino})
	step()
	check("after O_NONBLOCK", fdinfo{true, true, st.Ino})
	step()
	check("after clearing FD_CLOEXEC", fdinfo{false, true, st.Ino})
	step()
	_, err = read()
	want(t, "read after close", err, error(unix.ENOENT))
	step()
	try(t, "stat", unix.Stat(fmt.Sprintf("/proc/%d/fd/%d", p.pid, number), &st))
	info, err := read()
	try(t, "read fdinfo of another file", err)
	want(t, "inode of another file", info.inode, st.Ino)

	p.kill()
	_, err = read()
	checkGone(t, "read after the process ended", err)
	forkWithID(t, p.pid)
	_, err = os.Stat(fmt.Sprintf("/proc/%d/fdinfo/%d", p.pid, file.Fd()))
	try(t, "find the new process", err)
	_, err = read()
	checkGone(t, "read while another process has its id", err)
}

func checkGone(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ESRCH) {
		t.Errorf("%s: %v, want %v or %v", what, err, unix.ENOENT, unix.ESRCH)
	}
}

// forkWithID forks a process that has the given id and this process's files, and
// does nothing until it is killed when the test ends, or its time is over.
func forkWithID(t *testing.T, pid int) {
	t.Helper()
	tid := int32(pid)
	args := struct {
		flags, pidfd, childTID, parentTID, exitSignal, stack, stackSize, tls, setTID, setTIDSize uint64
	}{exitSignal: uint64(unix.SIGCHLD), setTID: uint64(uintptr(unsafe.Pointer(&tid))), setTIDSize: 1}
	timeout := unix.NsecToTimespec(2 * testkit.Patience.Nanoseconds())

	// Only raw system calls after the fork: the child has this thread alone.
	r, _, errno := unix.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args), 0)
	if errno == 0 && r == 0 {
		unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, uintptr(unsafe.Pointer(&timeout)), 0, 0, 0)
		unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	runtime.KeepAlive(&tid)
	if errno != 0 {
		t.Fatalf("fork with process id %d: %v", pid, errno)
	}
	t.Cleanup(func() {
		unix.Kill(pid, unix.SIGKILL)
		unix.Wait4(pid, nil, 0, nil)
	})
}
