// Relied upon: a seccomp notification names a thread, and pidfd_open(2) takes
// only thread group leaders, unless it is given PIDFD_THREAD. A leader's pidfd
// does for pidfd_getfd(2) as long as the thread shares its file table; for a
// thread with a table of its own it gives the leader's file of that number,
// where PIDFD_THREAD gives the thread's own.
//
// Since: Linux 5.6 (pidfd_getfd), 6.9 (PIDFD_THREAD).
// By: intercept/notify (takes the socket that a call names).

package kernel

import (
	"errors"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

const pidfdThread = unix.O_EXCL // PIDFD_THREAD of linux/pidfd.h

func init() {
	// One thread shares the table, another has its own, in which file number
	// firstFile is another file.
	roles["threads"] = func(c *child) {
		tids := make(chan int)
		for _, own := range []bool{false, true} {
			go func() {
				runtime.LockOSThread()
				if own {
					c.check("unshare files", unix.Unshare(unix.CLONE_FILES))
					c.check("replace file", unix.Dup3(firstFile+1, firstFile, 0))
				}
				tids <- unix.Gettid()
				select {}
			}()
			c.say("%d", <-tids)
		}
		c.hear()
	}
}

func inode(t *testing.T, fd int) uint64 {
	t.Helper()
	var st unix.Stat_t
	try(t, "fstat", unix.Fstat(fd, &st))
	return st.Ino
}

func TestPidfdOfThreads(t *testing.T) {
	r, w, err := os.Pipe()
	try(t, "make pipe", err)
	defer r.Close()
	defer w.Close()
	other, err := os.Open("/dev/null")
	try(t, "open", err)
	defer other.Close()
	p := start(t, "threads", nil, int(r.Fd()), int(other.Fd()))
	var sharing, own int
	p.hearInts(t, &sharing)
	p.hearInts(t, &own)

	for _, tid := range []int{sharing, own} {
		_, err := unix.PidfdOpen(tid, 0)
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			t.Errorf("pidfd_open of a thread: %v, want EINVAL or ENOENT, as newer kernels say", err)
		}
	}
	want(t, "file by the leader", inode(t, p.getfd(t, firstFile)), inode(t, int(r.Fd())))

	for _, c := range []struct {
		what string
		tid  int
		file *os.File
	}{{"sharing thread", sharing, r}, {"thread with its own table", own, other}} {
		pidfd, err := unix.PidfdOpen(c.tid, pidfdThread)
		if errors.Is(err, unix.EINVAL) {
			t.Skip("skip: needs Linux 6.9: PIDFD_THREAD")
		}
		try(t, "open pidfd of "+c.what, err)
		fd, err := unix.PidfdGetfd(pidfd, firstFile, 0)
		unix.Close(pidfd)
		try(t, "take file of "+c.what, err)
		want(t, "file of "+c.what, inode(t, fd), inode(t, int(c.file.Fd())))
		unix.Close(fd)
	}
}
