// Relied upon, about putting files into a trapped caller:
//
//   - SECCOMP_ADDFD_FLAG_SETFD replaces a number in one step: a sibling thread
//     sees the old file or the new one there, never none.
//   - SECCOMP_ADDFD_FLAG_SEND answers the call with the number, which the kernel
//     chose, close-on-exec when that was asked for.
//
// Since: Linux 5.9 (ADDFD), 5.14 (SEND).
// By: intercept/notify (swapped sockets, sockets created on the host first).

package kernel

import (
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

func init() {
	roles["socket"] = func(c *child) {
		c.trap(0, unix.SYS_SOCKET)
		for range 2 {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
			flags, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
			c.say("%d %v", flags, err)
			c.say("%d", fd)
		}
		c.hear()
	}
	roles["stare"] = stare
}

// staresMin is how often a number has to have another file before enough was seen.
const staresMin = 50

// stare looks at a number from a second thread while the first one is trapped,
// says once when it has seen enough, and at last how often it saw no file.
func stare(c *child) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	c.check("make socket", err)
	var stop atomic.Bool
	done := make(chan int)
	go func() {
		runtime.LockOSThread()
		var absent, changed int
		var before uint64
		for !stop.Load() {
			var st unix.Stat_t
			if unix.Fstat(fd, &st) != nil {
				absent++
			} else if st.Ino != before {
				if changed++; changed == staresMin {
					c.say("enough")
				}
				before = st.Ino
			}
		}
		done <- absent
	}()
	c.trap(0, unix.SYS_CONNECT)
	_ = unix.Connect(fd, sockaddr("127.0.0.1:80"))
	stop.Store(true)
	c.say("%d", <-done)
}

func TestSetfdIsAtomic(t *testing.T) {
	p := start(t, "stare", nil)
	l := p.takeListener(t)
	n := l.next(t)
	var sockets [2]int
	for i := range sockets {
		sockets[i] = socket(t, unix.AF_INET, unix.SOCK_STREAM, 0)
	}
	i := 0
	replace := func() {
		t.Helper()
		a := addfd{id: n.id, flags: unix.SECCOMP_ADDFD_FLAG_SETFD, srcfd: uint32(sockets[i%2]), newfd: uint32(n.args[0])}
		number, err := l.add(a)
		try(t, "replace file", err)
		want(t, "number", number, int(n.args[0]))
		i++
	}
	for range 5000 {
		replace()
	}
	// Two busy threads may share one CPU: it goes on until enough was seen.
	for end := time.Now().Add(testkit.Patience); len(p.heard) == 0; replace() {
		if time.Now().After(end) {
			t.Fatalf("after %d replacements, not enough of them was seen", i)
		}
	}
	want(t, "child", p.hear(t), "enough")
	try(t, "answer", l.send(answer{id: n.id}))
	var absent int
	p.hearInts(t, &absent)
	want(t, "times that the number had no file", absent, 0)
}

func TestAddfdSendAnswersWithTheNumber(t *testing.T) {
	fd := socket(t, unix.AF_INET, unix.SOCK_STREAM, 0)
	p := start(t, "socket", nil)
	l := p.takeListener(t)
	for _, flags := range []uint32{unix.O_CLOEXEC, 0} {
		added, err := l.add(addfd{
			id: l.next(t).id, flags: unix.SECCOMP_ADDFD_FLAG_SEND, srcfd: uint32(fd), newfdFlags: flags,
		})
		if errors.Is(err, unix.EINVAL) {
			t.Skip("skip: needs Linux 5.14: SECCOMP_ADDFD_FLAG_SEND")
		}
		try(t, "add file", err)
		want(t, "descriptor's flags", p.hear(t), map[uint32]string{unix.O_CLOEXEC: "1 <nil>", 0: "0 <nil>"}[flags])
		var number int
		p.hearInts(t, &number)
		want(t, "result of socket(2)", number, added)
		want(t, "file", inode(t, p.getfd(t, number)), inode(t, fd))
	}
}
