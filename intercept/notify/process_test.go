package notify

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/internal/sys/pidfd"
	"github.com/tsugiki/tsugiki/internal/sys/seccomp"
	"github.com/tsugiki/tsugiki/internal/sys/tracee"
	"github.com/tsugiki/tsugiki/internal/testkit"
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

// waits returns a caller whose call waits for an answer: a thread of this process.
func waits(t *testing.T) *program {
	t.Helper()
	listeners := make(chan int)
	go func() {
		runtime.LockOSThread() // the thread ends with its filter
		const userNotify, allow = 0x7fc00000, 0x7fff0000
		code := []unix.SockFilter{
			{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS},
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_GETPPID, Jf: 1},
			{Code: unix.BPF_RET | unix.BPF_K, K: userNotify},
			{Code: unix.BPF_RET | unix.BPF_K, K: allow},
		}
		prog := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
		fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&prog)))
		if errno != 0 {
			fd = ^uintptr(0)
		}
		listeners <- int(fd)
		_, _, _ = unix.Syscall(unix.SYS_GETPPID, 0, 0, 0)
	}()
	l := seccomp.Listener(<-listeners)
	if l < 0 {
		t.Fatal("no filter with a listener")
	}
	n, err := l.Receive()
	if err != nil {
		t.Fatal(err)
	}
	p := &program{s: &Supervisor{listener: l, openMemory: tracee.OpenMemory}, request: gate.Request{ID: n.ID, Thread: int(n.Thread)}}
	t.Cleanup(func() {
		if err := l.Answer(&seccomp.Response{ID: n.ID, Flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}); err != nil {
			t.Error(err)
		}
		p.s.processes.closeAll()
		unix.Close(int(l))
	})
	return p
}

// Epolls of a program stay open here only as long as they are needed, also where not all can be had.
func TestDescriptorsOfEpolls(t *testing.T) {
	p := waits(t)
	file, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(file)
	keepProcess(t, p, file)
	watched := func(epolls int) {
		for range epolls {
			epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
			if err == nil {
				err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, file, &unix.EpollEvent{Events: unix.EPOLLIN})
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { unix.Close(epoll) })
		}
	}
	check := func(room int, want error, watches int) {
		t.Helper()
		before := testkit.NextFile(t)
		var list []graft.Descriptor
		var err error
		ask := func() { list, err = p.Descriptors(file) }
		if room > 0 {
			testkit.WithFiles(t, room, ask)
		} else {
			ask()
		}
		if !errors.Is(err, want) || want == nil && (len(list) != 1 || len(list[0].Watches) != watches) {
			t.Errorf("%d, %v; want %v", len(list), err, want)
		}
		if err == nil {
			graft.CloseWatches(list)
		}
		if after := testkit.NextFile(t); after != before {
			t.Errorf("%d descriptors are left", after-before)
		}
	}
	watched(10)
	check(0, nil, 10)
	check(6, unix.EMFILE, 0)
	watched(tracee.WatchesMax - 10)
	check(0, nil, tracee.WatchesMax)
	watched(1)
	check(0, tracee.ErrWatches, 0)
}

// keepProcess has the supervisor open the process of a caller, which stays open then. The file is one
// of the caller's.
func keepProcess(t *testing.T, p *program, file int) {
	t.Helper()
	own, err := p.File(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Close(own); err != nil {
		t.Fatal(err)
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

// A call that a signal has interrupted is nobody's: whatever is read of its thread may be another's, and
// nothing of it stays open. Of a thread that is gone the kernel says so.
func TestGoneCaller(t *testing.T) {
	p := waits(t)
	file, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(file)
	keepProcess(t, p, file)
	questions := func(p *program) map[string]func() error {
		return map[string]func() error{
			"file":        func() error { _, err := p.File(file); return err },
			"memory":      func() error { _, err := p.memory(); return err },
			"read":        func() error { return p.readAt(4096, make([]byte, 1)) },
			"write":       func() error { return p.writeAt(4096, make([]byte, 1)) },
			"name":        func() error { _, err := giveName(p, netip.AddrPort{}, 4096, 4096); return err },
			"user":        func() error { _, _, err := p.User(); return err },
			"capability":  func() error { _, err := p.Capable(unix.CAP_NET_ADMIN); return err },
			"descriptors": func() error { _, err := p.Descriptors(file); return err },
			"accept":      func() error { _, err := p.s.await(p); return err },
		}
	}
	before := testkit.NextFile(t)
	interrupted := &program{s: p.s, request: p.request}
	interrupted.request.ID++
	interrupted.request.Number = file
	for name, ask := range questions(interrupted) {
		if err := ask(); !errors.Is(err, seccomp.ErrStale) {
			t.Errorf("%s of an interrupted call: %v, want %v", name, err, seccomp.ErrStale)
		}
	}
	gone := &program{s: p.s, request: p.request}
	gone.request.Thread = 1 << 30 // above the largest that there can be
	for name, ask := range questions(gone) {
		if err := ask(); !errors.Is(err, unix.ESRCH) && !errors.Is(err, os.ErrNotExist) || errors.Is(err, seccomp.ErrStale) {
			t.Errorf("%s of a thread that is gone: %v, want ESRCH or ENOENT", name, err)
		}
	}
	if _, err := p.Descriptors(1 << 20); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("descriptors of a file that is not open: %v", err)
	}
	if after := testkit.NextFile(t); after != before {
		t.Errorf("%d descriptors are left", after-before)
	}
}

// Limits of the program are its errno. Any other error is a fault of ours.
func TestRefusals(t *testing.T) {
	for _, errno := range []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOMEM} {
		if answer, err := orRefusal(fmt.Errorf("add: %w", errno)); err != nil || answer != fail(errno) {
			t.Errorf("%v: %+v, %v", errno, answer, err)
		}
	}
	if _, err := orRefusal(unix.EINVAL); !errors.Is(err, unix.EINVAL) {
		t.Errorf("EINVAL: %v", err)
	}
	if answer, err := orFault(unix.EFAULT, nil); err != nil || answer != fail(unix.EFAULT) {
		t.Errorf("EFAULT: %+v, %v", answer, err)
	}
	if answer, err := orFault(0, nil); err != nil || answer != succeed() {
		t.Errorf("no error: %+v, %v", answer, err)
	}
}
