package tracee

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// kcmpEpollTFD is KCMP_EPOLL_TFD of linux/kcmp.h (4.13, CONFIG_KCMP).
const kcmpEpollTFD = 7

// Descriptor is one number under which a thread has a file.
type Descriptor struct {
	Number      int
	CloseOnExec bool
	Watches     []Watch
}

// Watch is the registration of a descriptor in an epoll.
type Watch struct {
	Epoll  int // the thread's number for it
	Events uint32
	Data   uint64
}

// WatchesMax bounds the registrations of one file: a program can have a million with some thousand
// descriptors.
const WatchesMax = 1024

// ErrWatches says that there are more.
var ErrWatches = fmt.Errorf("the socket is in epolls more than %d times", WatchesMax)

// Descriptors lists the numbers under which a thread has a file, of which the caller has a duplicate. It goes
// through all that the thread has open. The error is ESRCH if the thread is gone.
func Descriptors(tid, file int) ([]Descriptor, error) {
	want, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(file))
	if err != nil {
		return nil, fmt.Errorf("identify socket: %w", err)
	}
	dir := fmt.Sprintf("/proc/%d/fd", tid)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, unix.ESRCH
	}
	if err != nil {
		return nil, err
	}
	var found, epolls []int
	for _, entry := range entries {
		link, err := os.Readlink(dir + "/" + entry.Name())
		if err != nil {
			continue // closed meanwhile
		}
		number, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		switch link {
		case want:
			found = append(found, number)
		case "anon_inode:[eventpoll]":
			epolls = append(epolls, number)
		}
	}
	var list []Descriptor
	watches := 0
	for _, number := range found {
		d, err := describe(tid, number, epolls)
		if errors.Is(err, fs.ErrNotExist) { // closed meanwhile
			continue
		}
		if watches += len(d.Watches); err == nil && watches > WatchesMax {
			err = ErrWatches
		}
		if err != nil {
			return nil, err
		}
		list = append(list, d)
	}
	return list, nil
}

func describe(tid, number int, epolls []int) (Descriptor, error) {
	d := Descriptor{Number: number}
	info, err := fdinfo(tid, number)
	if err != nil {
		return d, err
	}
	flags, err := strconv.ParseUint(field(info, "flags:"), 8, 32)
	if err != nil {
		return d, fmt.Errorf("read flags of descriptor %d: %w", number, err)
	}
	d.CloseOnExec = flags&unix.O_CLOEXEC != 0
	for _, epoll := range epolls {
		if !watches(tid, epoll, number) {
			continue
		}
		w, found, err := watchIn(tid, epoll, number)
		if err != nil {
			return d, err
		}
		if found {
			d.Watches = append(d.Watches, w)
		}
		if len(d.Watches) > WatchesMax {
			return d, ErrWatches
		}
	}
	return d, nil
}

// watchIn finds the registration of a descriptor in an epoll. An epoll that was closed meanwhile has none.
func watchIn(tid, epoll, number int) (w Watch, found bool, err error) {
	info, err := fdinfo(tid, epoll)
	if errors.Is(err, fs.ErrNotExist) {
		return w, false, nil
	}
	if err != nil {
		return w, false, err
	}
	events, data, found := parseWatch(info, number)
	return Watch{epoll, events, data}, found, nil
}

// watches tells, without going through its list, whether an epoll has the file that a descriptor refers to,
// under that number.
func watches(tid, epoll, number int) bool {
	slot := struct{ efd, tfd, toff uint32 }{uint32(epoll), uint32(number), 0}
	r, errno := kcmp(tid, tid, kcmpEpollTFD, number, &slot)
	// Without kcmp(2) the list has to tell.
	return errno == unix.ENOSYS || errno == unix.EPERM || (errno == 0 && r == 0)
}

func fdinfo(tid, number int) ([]byte, error) {
	info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", tid, number))
	if err != nil {
		return nil, fmt.Errorf("read about descriptor %d: %w", number, err)
	}
	return info, nil
}

// parseWatch finds a registration in the fdinfo of an epoll, whose lines are
// "tfd: N events: HEX data: HEX pos:D ino:HEX sdev:HEX" (proc(5)).
func parseWatch(info []byte, number int) (events uint32, data uint64, found bool) {
	for lines := bufio.NewScanner(bytes.NewReader(info)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) < 6 || f[0] != "tfd:" || f[2] != "events:" || f[4] != "data:" || f[1] != strconv.Itoa(number) {
			continue
		}
		ev, err1 := strconv.ParseUint(f[3], 16, 32)
		d, err2 := strconv.ParseUint(f[5], 16, 64)
		if err1 == nil && err2 == nil {
			return uint32(ev), d, true
		}
	}
	return 0, 0, false
}

// field is the value behind a key at the start of a line.
func field(info []byte, key string) string {
	for line := range strings.Lines(string(info)) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}
