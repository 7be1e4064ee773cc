package tracee

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

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

func TestParseWatch(t *testing.T) {
	const info = "pos:\t0\nflags:\t02\nmnt_id:\t16\nino:\t1060\n" +
		"tfd:       12 events:       19 data: ffffffffffffffff  pos:0 ino:61af sdev:9\n" +
		"tfd:        5 events: 80000001 data:                7  pos:0 ino:61b0 sdev:9\n" +
		"tfd:        x events: 80000001 data:                7\ntfd: 9\n"
	tests := []struct {
		number int
		events uint32
		data   uint64
		found  bool
	}{
		{5, 0x80000001, 7, true},
		{12, 0x19, 0xffffffffffffffff, true},
		{9, 0, 0, false},
		{1, 0, 0, false},
	}
	for _, tt := range tests {
		events, data, found := parseWatch([]byte(info), tt.number)
		if events != tt.events || data != tt.data || found != tt.found {
			t.Errorf("descriptor %d: %#x, %#x, %v", tt.number, events, data, found)
		}
	}
}

func FuzzParseWatch(f *testing.F) {
	f.Add([]byte("tfd:        5 events: 80000001 data:                7  pos:0 ino:61b0 sdev:9\n"), 5)
	f.Fuzz(func(t *testing.T, info []byte, number int) {
		parseWatch(info, number)
	})
}

// An epoll that is closed while a descriptor is described has no registration. It is no error: the descriptor is there.
func TestWatchInClosedEpoll(t *testing.T) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	file, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(file)
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, file, &unix.EpollEvent{Events: unix.EPOLLIN}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []bool{true, false} {
		w, found, err := watchIn(os.Getpid(), epoll, file)
		if found != want || err != nil || found && w.Epoll != epoll {
			t.Errorf("%+v, %v, %v; want %v", w, found, err, want)
		}
		unix.Close(epoll)
	}
}

// What a program's descriptor is: its flags, and that an epoll without it has no part in it.
func TestDescribe(t *testing.T) {
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
		d, err := describe(os.Getpid(), file, []int{epoll})
		if err != nil || d.CloseOnExec != want || len(d.Watches) != 0 {
			t.Errorf("%+v, %v", d, err)
		}
		unix.Close(file)
		if _, err := describe(os.Getpid(), file, nil); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a descriptor that was closed: %v", err)
		}
	}
}
