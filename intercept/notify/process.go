package notify

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/tsugiki/tsugiki/internal/sys/pidfd"
	"github.com/tsugiki/tsugiki/internal/sys/proc"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/graft"
)

// kcmpEpollTFD is KCMP_EPOLL_TFD of linux/kcmp.h (4.13, CONFIG_KCMP).
const kcmpEpollTFD = 7

// processes finds the process of a thread and holds on to it. A pidfd refers to one process for
// good. So if another process has the thread id by now, the entry fails instead of reaching that
// process.
type processes struct {
	mu   sync.Mutex
	byID map[int]pidfd.FD // by thread id
}

// processesMax bounds the pidfds that are kept open.
const processesMax = 256

// getFile duplicates a descriptor of a thread's process. ps is locked meanwhile,
// so that nobody closes the pidfd.
func (ps *processes) getFile(tid, number int) (int, error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if process, kept := ps.byID[tid]; kept {
		file, err := process.File(number)
		if !errors.Is(err, unix.ESRCH) {
			return file, err
		}
		// What was kept is of a process that is gone.
		process.Close()
		delete(ps.byID, tid)
	}
	process, err := openProcess(tid)
	if err != nil {
		return -1, err
	}
	ps.keep(tid, process)
	return process.File(number)
}

// keep is to be called with ps locked.
func (ps *processes) keep(tid int, process pidfd.FD) {
	if len(ps.byID) >= processesMax {
		ps.clear()
	}
	if ps.byID == nil {
		ps.byID = map[int]pidfd.FD{}
	}
	ps.byID[tid] = process
}

func (ps *processes) closeAll() {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.clear()
}

// clear is to be called with ps locked.
func (ps *processes) clear() {
	for tid, process := range ps.byID {
		process.Close()
		delete(ps.byID, tid)
	}
}

// openProcess opens a thread, or where the kernel knows only processes (before
// 6.9) the one that the thread is of.
func openProcess(tid int) (pidfd.FD, error) {
	process, err := pidfd.OpenThread(tid)
	if err == nil || !errors.Is(err, unix.EINVAL) {
		return process, err
	}
	ids, err := numbers(tid, "Tgid")
	if err != nil {
		return pidfd.None, err
	}
	return pidfd.OpenFD(ids[0])
}

// numbers reads those of a field of /proc/TID/status.
func numbers(tid int, key string) ([]int, error) {
	status, err := proc.Status(tid)
	if err != nil {
		return nil, unix.ESRCH
	}
	if _, found := status.Get(key); !found {
		return nil, unix.ESRCH
	}
	list, err := status.Numbers(key)
	if err != nil {
		return nil, fmt.Errorf("read status of thread %d: %w", tid, err)
	}
	return list, nil
}

// program is the caller of one request, for the engine.
type program struct {
	s *Supervisor
	// request has the caller's thread. It is the caller's only as long as the notification
	// is valid, which every method asks after it has used it.
	request gate.Request
	call    uint64 // request.ID, or that of the call which a signal interrupted and the kernel restarts
	again   bool
}

func (p *program) Thread() int { return p.request.Thread }

func (p *program) Call() uint64 { return p.call }

func (p *program) Again() bool { return p.again }

func (p *program) valid() error {
	if !p.s.listener.valid(p.request.ID) {
		return errStale
	}
	return nil
}

func (p *program) File(number int) (int, error) {
	fd, err := p.s.processes.getFile(p.request.Thread, number)
	if verr := p.valid(); verr != nil {
		if err == nil {
			unix.Close(fd)
		}
		return -1, verr
	}
	if err != nil {
		return -1, fmt.Errorf("duplicate descriptor %d of thread %d: %w", number, p.request.Thread, err)
	}
	return fd, nil
}

func (p *program) User() (uid, gid int, err error) {
	uids, err := numbers(p.request.Thread, "Uid")
	if err != nil {
		return 0, 0, err
	}
	gids, err := numbers(p.request.Thread, "Gid")
	if err != nil {
		return 0, 0, err
	}
	if len(uids) < 2 || len(gids) < 2 {
		return 0, 0, fmt.Errorf("read user of thread %d: status is cut short", p.request.Thread)
	}
	return uids[1], gids[1], p.valid()
}

func (p *program) Capable(capability int) (bool, error) {
	status, err := proc.Status(p.request.Thread)
	if err != nil {
		return false, unix.ESRCH
	}
	has, err := status.Set("CapEff")
	if err != nil {
		return false, fmt.Errorf("read capabilities of thread %d: %w", p.request.Thread, err)
	}
	return has>>capability&1 != 0, p.valid()
}

func (p *program) Install(number, file int, closeOnExec bool) error {
	a := addFd{id: p.request.ID, flags: unix.SECCOMP_ADDFD_FLAG_SETFD, srcFd: uint32(file), newFd: uint32(number)}
	if closeOnExec {
		a.newFdFlags = unix.O_CLOEXEC
	}
	if _, err := p.s.listener.addFd(&a); err != nil {
		return fmt.Errorf("replace descriptor %d: %w", number, err)
	}
	return nil
}

func (p *program) Add(file int, closeOnExec bool) (int, error) {
	a := addFd{id: p.request.ID, srcFd: uint32(file)}
	if closeOnExec {
		a.newFdFlags = unix.O_CLOEXEC
	}
	number, err := p.s.listener.addFd(&a)
	if err != nil {
		return -1, fmt.Errorf("add descriptor: %w", err)
	}
	return number, nil
}

// watchesMax bounds the registrations of one socket, each of which is a descriptor of ours: a program
// can have a million with some thousand descriptors.
const watchesMax = 1024

var errWatches = fmt.Errorf("the socket is in epolls more than %d times", watchesMax)

// Descriptors goes through all that the process has open: it is asked only
// where a socket is swapped.
func (p *program) Descriptors(file int) (described []graft.Descriptor, err error) {
	defer func() {
		if err != nil {
			graft.CloseWatches(described)
		}
	}()
	want, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(file))
	if err != nil {
		return nil, fmt.Errorf("identify socket: %w", err)
	}
	dir := fmt.Sprintf("/proc/%d/fd", p.request.Thread)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, unix.ESRCH
	}
	var found []graft.Descriptor
	var epolls []int
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
			found = append(found, graft.Descriptor{Number: number})
		case "anon_inode:[eventpoll]":
			epolls = append(epolls, number)
		}
	}
	watches := 0
	for _, d := range found {
		err := p.describe(&d, epolls)
		described = append(described, d)
		if errors.Is(err, fs.ErrNotExist) { // closed meanwhile
			last := len(described) - 1
			graft.CloseWatches(described[last:])
			described = described[:last]
			continue
		}
		if watches += len(d.Watches); err == nil && watches > watchesMax {
			err = errWatches
		}
		if err != nil {
			return described, err
		}
	}
	return described, p.valid()
}

func (p *program) describe(d *graft.Descriptor, epolls []int) error {
	info, err := p.fdinfo(d.Number)
	if err != nil {
		return err
	}
	flags, err := strconv.ParseUint(field(info, "flags:"), 8, 32)
	if err != nil {
		return fmt.Errorf("read flags of descriptor %d: %w", d.Number, err)
	}
	d.CloseOnExec = flags&unix.O_CLOEXEC != 0
	for _, epoll := range epolls {
		if !p.watches(epoll, d.Number) {
			continue
		}
		w, found, err := p.watch(epoll, d.Number)
		if err != nil {
			return err
		}
		if found {
			d.Watches = append(d.Watches, w)
		}
		if len(d.Watches) > watchesMax {
			return errWatches
		}
	}
	return nil
}

// watches tells, without going through its list, whether an epoll has the file
// that a descriptor refers to, under that number.
func (p *program) watches(epoll, number int) bool {
	slot := struct{ efd, tfd, toff uint32 }{uint32(epoll), uint32(number), 0}
	r, errno := kcmp(p.request.Thread, p.request.Thread, kcmpEpollTFD, number, &slot)
	// Without kcmp(2) the list has to tell.
	return errno == unix.ENOSYS || errno == unix.EPERM || (errno == 0 && r == 0)
}

func (p *program) watch(epoll, number int) (graft.Watch, bool, error) {
	info, err := p.fdinfo(epoll)
	if err != nil {
		return graft.Watch{}, false, err
	}
	events, data, found := parseWatch(info, number)
	if !found {
		return graft.Watch{}, false, nil
	}
	fd, err := p.File(epoll)
	if err != nil {
		return graft.Watch{}, false, err
	}
	return graft.Watch{Epoll: fd, Events: events, Data: data}, true, nil
}

func (p *program) fdinfo(number int) ([]byte, error) {
	info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", p.request.Thread, number))
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
