package notify

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/internal/sys/pidfd"
)

// A descriptor is duplicated out of the process that a thread is of. Where the thread is
// another process's by now, that one's is meant, and where it is nobody's, the kernel says so.
func TestGetFile(t *testing.T) {
	var ps processes
	defer ps.closeAll()
	pipe := make([]int, 2)
	if err := unix.Pipe2(pipe, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	gone := exec.Command("true")
	if err := gone.Start(); err != nil {
		t.Fatal(err)
	}
	// A pidfd of a process that is gone is kept under our number.
	process, err := pidfd.OpenFD(gone.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := gone.Wait(); err != nil {
		t.Fatal(err)
	}
	ps.keep(os.Getpid(), process)
	for range 2 {
		file, err := ps.getFile(os.Getpid(), pipe[1])
		if err != nil {
			t.Fatal(err)
		}
		var a, b unix.Stat_t
		if err := errors.Join(unix.Fstat(file, &a), unix.Fstat(pipe[1], &b)); err != nil || a.Ino != b.Ino {
			t.Errorf("inode %d, want %d, %v", a.Ino, b.Ino, err)
		}
		unix.Close(file)
	}
	if len(ps.byID) != 1 {
		t.Errorf("kept: %v", ps.byID)
	}
	if _, err := ps.getFile(os.Getpid(), 1<<20); !errors.Is(err, unix.EBADF) {
		t.Errorf("a descriptor that is not open: %v", err)
	}
	if _, err := ps.getFile(gone.Process.Pid, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("a process that is gone: %v", err)
	}
}

// No more processes are held than there is room for.
func TestProcessesAreBounded(t *testing.T) {
	var ps processes
	defer ps.closeAll()
	for tid := range processesMax + 10 {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		ps.mu.Lock()
		ps.keep(tid, pidfd.FD(fd))
		ps.mu.Unlock()
		if n := len(ps.byID); n > processesMax {
			t.Fatalf("%d are kept", n)
		}
	}
}

// What a program's descriptor is: its flags, and that an epoll without it has no part in it.
func TestDescribe(t *testing.T) {
	p := &program{s: &Supervisor{}, request: gate.Request{Thread: os.Getpid()}}
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(epoll)
	for flag, want := range map[int]bool{0: false, unix.O_CLOEXEC: true} {
		file, err := unix.Open("/dev/null", unix.O_RDONLY|flag, 0)
		if err != nil {
			t.Fatal(err)
		}
		d := graft.Descriptor{Number: file}
		if err := p.describe(&d, []int{epoll}); err != nil || d.CloseOnExec != want || len(d.Watches) != 0 {
			t.Errorf("%+v, %v", d, err)
		}
		unix.Close(file)
		if err := p.describe(&d, nil); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a descriptor that was closed: %v", err)
		}
	}
}

// The kernel's own text about an epoll, and such as is none.
func TestWatchOfTheKernel(t *testing.T) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(epoll)
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(event)
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, event, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET&0x7fffffff, Fd: 5, Pad: 6}); err != nil {
		t.Fatal(err)
	}
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", epoll))
	if err != nil {
		t.Fatal(err)
	}
	events, data, found := parseWatch(info, event)
	if !found || events&unix.EPOLLIN == 0 || data != 6<<32|5 {
		t.Errorf("%#x, %#x, %v of %q", events, data, found, info)
	}
	for _, text := range []string{"", "tfd: 3", "tfd: 3 events: zz data: 1 pos:0", "tfd: 4 events: 1 data: 1 pos:0"} {
		if _, _, found := parseWatch([]byte(text), 3); found {
			t.Errorf("found in %q", text)
		}
	}
	if got := field([]byte("pos:\t0\nflags:\t02000002\n"), "flags:"); got != "02000002" {
		t.Errorf("flags are %q", got)
	}
}

// A line of /proc/TID/status, of threads that are there and that are not.
func TestStatus(t *testing.T) {
	ids, err := numbers(os.Getpid(), "Uid")
	if want := []int{os.Getuid(), os.Geteuid()}; err != nil || len(ids) != 4 || !slices.Equal(ids[:2], want) {
		t.Errorf("%v, %v; want %v and two more", ids, err, want)
	}
	for key, pid := range map[string]int{"Nothing": os.Getpid(), "Uid": 1 << 30} {
		if _, err := numbers(pid, key); !errors.Is(err, unix.ESRCH) {
			t.Errorf("%s of %d: %v", key, pid, err)
		}
	}
	if _, err := numbers(os.Getpid(), "State"); err == nil || errors.Is(err, unix.ESRCH) {
		t.Errorf("a line without numbers: %v", err)
	}
}
