package keeper

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// epollProgram is the program in whose name sockets are registered.
func epollProgram(t testing.TB) string {
	t.Helper()
	return build(t, "epoll-program", []string{"musl-gcc", "-static"}, "testdata/epoll_program.c")
}

func newEpoll(t testing.TB) *os.File {
	t.Helper()
	return open(t, func() (*os.File, error) {
		fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
		return os.NewFile(uintptr(fd), "epoll"), err
	})
}

// registered lists the numbers that an epoll instance has registrations for,
// in /proc's words.
func registered(t testing.TB, ep *os.File) []string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", ep.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	var numbers []string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "tfd:" {
			numbers = append(numbers, f[1])
		}
	}
	return numbers
}

// bound is a socket that is always ready for writing.
func bound(t testing.TB, k *Keeper) *os.File {
	t.Helper()
	return open(t, func() (*os.File, error) {
		fd, err := k.Socket(udp)
		return os.NewFile(uintptr(fd), "socket"), err
	})
}

// The numbers below 8 are those of the keeper's control socket, of its kill
// file and of what it receives, in every state that earlier calls leave.
func TestEpollAddUnderAnyNumber(t *testing.T) {
	testkit.CheckLeaks(t)
	g := newGroup(t, "")
	for name, cfg := range map[string]Config{
		"plain": {}, "kill": {Kill: open(t, g.Killer)}, "sanitized": {Binary: sanitized(t), Kill: open(t, g.Killer)},
	} {
		k := start(t, cfg)
		for _, number := range []int{3, 4, 5, 3, 4, 0, 1, 2, 3, 4, 5, 6, 7, 100, 899} {
			ep, s := newEpoll(t), bound(t, k)
			data := uint64(number)<<40 | 0xabcdef
			if err := k.EpollAdd(int(ep.Fd()), int(s.Fd()), number, unix.EPOLLOUT, data); err != nil {
				t.Errorf("%s: %d: %v", name, number, err)
				continue
			}
			if got := registered(t, ep); len(got) != 1 || got[0] != strconv.Itoa(number) {
				t.Errorf("%s: registered numbers are %v, want %d", name, got, number)
			}
			cmd := exec.Command(epollProgram(t), strconv.Itoa(number), strconv.FormatUint(data, 10), strconv.FormatInt(testkit.Patience.Milliseconds(), 10))
			cmd.ExtraFiles = []*os.File{ep, s}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: program with its socket at %d: %v\n%s", name, number, err, out)
			}
			if got := registered(t, ep); got != nil {
				t.Errorf("%s: registered numbers after the program's delete are %v", name, got)
			}
		}
		want := 2
		if cfg.Kill != nil {
			want = 3
		}
		files, err := testkit.OpenFiles(k.PID())
		if err != nil || len(files) != want && cfg.Binary == "" {
			t.Errorf("%s: keeper's files are %v (%v), want %d", name, files, err, want)
		}
	}
}

func TestKillAfterItMoved(t *testing.T) {
	testkit.CheckLeaks(t)
	g := newGroup(t, "")
	v := newVictim(t, open(t, g.Open))
	r := startRaw(t, program(t), Config{Kill: open(t, g.Killer)})
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ep)
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(s)
	for number := range int32(10) {
		r.send(encode(request{op: opEpollAdd, number: number}), []int{ep, s})
		if b, _ := r.receive(); status(b[8]) != statusDone {
			t.Errorf("number %d: % x", number, b)
		}
	}
	unix.Close(r.fd)
	r.fd = -1
	mustEnd(t, "container", v.ended)
	if err := r.cmd.Wait(); err != nil {
		t.Errorf("keeper: %v", err)
	}
}

// More calls at once than the control socket has room for, both ways.
func TestManyEpollCalls(t *testing.T) {
	testkit.CheckLeaks(t)
	k := start(t, Config{})
	ep, s := newEpoll(t), bound(t, k)
	const calls = 4000
	results := make(chan error, 2*calls)
	for i := range calls {
		go func() { results <- k.EpollAdd(int(ep.Fd()), int(s.Fd()), 10+i, unix.EPOLLOUT, 0) }()
		go func() {
			fd, err := k.Socket([]Kind{tcp, udp, {unix.AF_INET6, unix.SOCK_STREAM, 0}}[i%3])
			unix.Close(fd)
			results <- err
		}()
	}
	limit := time.After(testkit.Patience)
	for range 2 * calls {
		select {
		case err := <-results:
			if err != nil {
				t.Fatal(err)
			}
		case <-limit:
			t.Fatal("calls wait for ever")
		}
	}
	if n := len(registered(t, ep)); n != calls {
		t.Errorf("%d registrations, want %d", n, calls)
	}
}

func TestEpollAnswers(t *testing.T) {
	testkit.CheckLeaks(t)
	k := start(t, Config{})
	ep, s := newEpoll(t), bound(t, k)
	epfd, fd := int(ep.Fd()), int(s.Fd())
	refused := func(what string, err error, want unix.Errno) {
		t.Helper()
		var e *EpollError
		if !errors.As(err, &e) || e.Errno != want {
			t.Errorf("%s: %v, want the kernel's %v", what, err, want)
		}
	}
	ours := func(what string, err error, want error) {
		t.Helper()
		var e *EpollError
		if err == nil || errors.As(err, &e) || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: %v, want an error of our own, %v", what, err, want)
		}
	}
	if err := k.EpollAdd(epfd, fd, 20, unix.EPOLLIN, 1); err != nil {
		t.Fatal(err)
	}
	refused("add again", k.EpollAdd(epfd, fd, 20, unix.EPOLLIN, 1), unix.EEXIST)
	if err := k.EpollAdd(epfd, fd, 21, unix.EPOLLIN, 1); err != nil {
		t.Errorf("add under another number: %v", err)
	}
	refused("delete another number", k.EpollDel(epfd, fd, 22), unix.ENOENT)
	for _, number := range []int{20, 21} {
		if err := k.EpollDel(epfd, fd, number); err != nil {
			t.Errorf("delete %d: %v", number, err)
		}
	}
	refused("delete again", k.EpollDel(epfd, fd, 20), unix.ENOENT)
	refused("no epoll instance", k.EpollAdd(fd, fd, 20, unix.EPOLLIN, 1), unix.EINVAL)
	ours("closed descriptor", k.EpollAdd(epfd, 1<<20, 20, unix.EPOLLIN, 1), unix.EBADF)
	ours("number beyond the limit", k.EpollAdd(epfd, fd, math.MaxInt32, unix.EPOLLIN, 1), unix.EMFILE)
	ours("number beyond int", k.EpollAdd(epfd, fd, math.MaxInt32+1, unix.EPOLLIN, 1), nil)
	ours("number below 0", k.EpollDel(epfd, fd, -1), nil)

	var limit unix.Rlimit
	if err := unix.Prlimit(k.PID(), unix.RLIMIT_NOFILE, nil, &limit); err != nil {
		t.Fatal(err)
	}
	highest := int(min(limit.Max, 20000)) - 1
	if err := k.EpollAdd(epfd, fd, highest, unix.EPOLLIN, 1); err != nil {
		t.Errorf("number %d: %v", highest, err)
	}
	socket(t, k, tcp) // all of the above left it alive
}
