// Relied upon: an epoll instance knows what it watches by file and number, both.
//
//   - kcmp(KCMP_EPOLL_TFD) tells whether a file is registered under a number: 0
//     for the very file, ENOENT where there is none of that number.
//   - /proc/PID/fdinfo/EPFD shows the number, and in hex the events and the data.
//   - another process that has the instance registers a file under the program's
//     own number, by a thread whose file table has it there. Once the program's
//     number names that file, its MOD, DEL and wait find the registration.
//   - the registration of a replaced file goes with its last descriptor, but the
//     one that SECCOMP_ADDFD_FLAG_SETFD replaced is let go only when the trapped call
//     returns. Over a connect that blocks, another thread would be told of
//     the old socket, so the supervisor deletes its registration first, in the
//     same way in which it adds the new one.
//
// Since: Linux 4.13 (kcmp; needs CONFIG_KCMP or CHECKPOINT_RESTORE).
// By: intercept/notify (programs that register a socket before they connect it).

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
)

const (
	epollEvents = unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP
	epollData   = 0x1122334455667788
)

func epollEvent(events uint32, data uint64) *unix.EpollEvent {
	return &unix.EpollEvent{Events: events, Fd: int32(uint32(data)), Pad: int32(data >> 32)}
}

func init() {
	roles["epoll"] = func(c *child) {
		c.check("set signal action", noRestart(plainSignal))
		ep, err := unix.EpollCreate1(0)
		c.check("make epoll instance", err)
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		c.check("make socket", err)
		c.check("register", unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, epollEvent(epollEvents, epollData)))
		c.trap(0, unix.SYS_CONNECT)
		c.say("%d %d", ep, fd)
		c.say("%v", unix.Connect(fd, sockaddr("127.0.0.1:80")))

		wait := func() {
			var events [4]unix.EpollEvent
			n, err := unix.EpollWait(ep, events[:], 5000)
			c.say("%d %x %x %v", n, uint64(uint32(events[0].Pad))<<32|uint64(uint32(events[0].Fd)), events[0].Events, err)
		}
		wait()
		c.say("%v", unix.EpollCtl(ep, unix.EPOLL_CTL_MOD, fd, epollEvent(unix.EPOLLOUT, 99)))
		wait()
		c.say("%v", unix.EpollCtl(ep, unix.EPOLL_CTL_DEL, fd, nil))
		c.say("%v", unix.EpollCtl(ep, unix.EPOLL_CTL_DEL, fd, nil))
	}
}

// registered asks whether number fd of a process is registered under number as
// in its epoll instance: 0 if it is, 1 or 2 if another file is.
func registered(pid, ep, fd, as int) (int, error) {
	const kcmpEpollTFD = 7 // KCMP_EPOLL_TFD of linux/kcmp.h
	slot := struct{ efd, tfd, toff uint32 }{uint32(ep), uint32(as), 0}
	r, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(pid), uintptr(pid), kcmpEpollTFD,
		uintptr(fd), uintptr(unsafe.Pointer(&slot)), 0)
	if errno != 0 {
		return -1, errno
	}
	return int(r), nil
}

type registration struct {
	number int
	events uint32
	data   uint64
}

var registrationLine = regexp.MustCompile(`(?m)^tfd: +(\d+) events: +([0-9a-f]+) data: +([0-9a-f]+)`)

func registrations(t *testing.T, pid, ep int) (all []registration) {
	t.Helper()
	info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", pid, ep))
	try(t, "read fdinfo", err)
	for _, m := range registrationLine.FindAllStringSubmatch(string(info), -1) {
		number, _ := strconv.Atoi(m[1])
		events, _ := strconv.ParseUint(m[2], 16, 32)
		data, _ := strconv.ParseUint(m[3], 16, 64)
		all = append(all, registration{number, uint32(events), data})
	}
	return all
}

// epollCtlAs is epoll_ctl for fd as if it had another number.
func epollCtlAs(ep, op, fd, number int, event *unix.EpollEvent) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends, and its file table with it
		err := unix.Unshare(unix.CLONE_FILES)
		if err == nil && fd != number {
			err = unix.Dup3(fd, number, unix.O_CLOEXEC)
		}
		if err == nil {
			err = unix.EpollCtl(ep, op, number, event)
		}
		done <- err
	}()
	return <-done
}

func TestEpollRegistrationUnderAnotherProcessNumber(t *testing.T) {
	enterNetns(t)
	listenerAt(t, unix.SOCK_STREAM, "127.0.0.1:80")
	p := start(t, "epoll", &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNET})
	l := p.takeListener(t)
	var ep, number int
	p.hearInts(t, &ep, &number)
	n := l.next(t)

	order, err := registered(p.pid, ep, number, number)
	if errors.Is(err, unix.ENOSYS) {
		t.Skip("skip: needs CONFIG_KCMP: kcmp(2)")
	}
	try(t, "compare", err)
	want(t, "order of the registered file", order, 0)
	_, err = registered(p.pid, ep, number, ep)
	want(t, "number that is not registered", err, error(unix.ENOENT))
	order, err = registered(p.pid, ep, ep, number)
	try(t, "compare", err)
	if order == 0 {
		t.Error("another file is taken for the registered one")
	}
	before := registrations(t, p.pid, ep)
	want(t, "registrations", len(before), 1)
	// The kernel adds EPOLLERR and EPOLLHUP.
	want(t, "registration", before[0], registration{number, epollEvents | unix.EPOLLERR | unix.EPOLLHUP, epollData})

	shared, old, fd := p.getfd(t, ep), p.getfd(t, number), socket(t, unix.AF_INET, unix.SOCK_STREAM, 0)
	event := epollEvent(before[0].events, before[0].data)
	try(t, "delete registration", epollCtlAs(shared, unix.EPOLL_CTL_DEL, old, number, nil))
	try(t, "register", epollCtlAs(shared, unix.EPOLL_CTL_ADD, fd, number, event))
	_, err = l.add(addfd{id: n.id, flags: unix.SECCOMP_ADDFD_FLAG_SETFD, srcfd: uint32(fd), newfd: uint32(number)})
	try(t, "replace socket", err)
	order, err = registered(p.pid, ep, number, number)
	try(t, "compare", err)
	want(t, "order of the new file", order, 0)
	want(t, "registrations", fmt.Sprint(registrations(t, p.pid, ep)), fmt.Sprint(before))
	l.proceed(t, n)

	want(t, "connect", p.hear(t), "<nil>")
	want(t, "wait", p.hear(t), fmt.Sprintf("1 %x %x <nil>", epollData, unix.EPOLLOUT))
	want(t, "MOD", p.hear(t), "<nil>")
	want(t, "wait after MOD", p.hear(t), fmt.Sprintf("1 %x %x <nil>", 99, unix.EPOLLOUT))
	want(t, "DEL", p.hear(t), "<nil>")
	want(t, "DEL again", p.hear(t), unix.ENOENT.Error())
}

func TestEpollRegistrationOfReplacedFileStaysUntilTheCallReturns(t *testing.T) {
	enterNetns(t)
	fullListener(t, "127.0.0.1:80")
	p := start(t, "epoll", &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNET})
	l := p.takeListener(t)
	var ep, number int
	p.hearInts(t, &ep, &number)
	n := l.next(t)
	fd := socket(t, unix.AF_INET, unix.SOCK_STREAM, 0)
	_, err := l.add(addfd{id: n.id, flags: unix.SECCOMP_ADDFD_FLAG_SETFD, srcfd: uint32(fd), newfd: uint32(number)})
	try(t, "replace socket", err)
	l.proceed(t, n)
	waitConnecting(t, fd)
	want(t, "registrations while connect blocks", len(registrations(t, p.pid, ep)), 1)
	try(t, "signal", unix.Tgkill(p.pid, int(n.pid), plainSignal))
	want(t, "connect", p.hear(t), unix.EINTR.Error())
	want(t, "registrations after connect", len(registrations(t, p.pid, ep)), 0)
}
