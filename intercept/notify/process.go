package notify

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/internal/sys/pidfd"
	"github.com/tsugiki/tsugiki/internal/sys/proc"
	"github.com/tsugiki/tsugiki/internal/sys/seccomp"
	"github.com/tsugiki/tsugiki/internal/sys/tracee"
)

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

// statusOf reads /proc/TID/status. The error is ESRCH if the thread is gone.
func statusOf(tid int) (proc.Fields, error) {
	status, err := proc.Status(tid)
	if errors.Is(err, fs.ErrNotExist) {
		err = unix.ESRCH
	}
	return status, err
}

// numbers reads those of a field of /proc/TID/status.
func numbers(tid int, key string) ([]int, error) {
	status, err := statusOf(tid)
	if err != nil {
		return nil, err
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
	waited  *waitingCall // nil: the call has not waited for a connection
	// replaced says that a descriptor of the program has been replaced.
	replaced bool
	// accepted is the connection with which the call is answered.
	accepted *graft.Connection
}

func (p *program) Thread() int { return p.request.Thread }

func (p *program) Call() uint64 { return p.call }

func (p *program) Again() bool { return p.again }

func (p *program) valid() error {
	if !p.s.listener.Valid(p.request.ID) {
		return seccomp.ErrStale
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
	status, err := statusOf(p.request.Thread)
	if err != nil {
		return false, err
	}
	has, err := status.Set("CapEff")
	if err != nil {
		return false, fmt.Errorf("read capabilities of thread %d: %w", p.request.Thread, err)
	}
	return has>>capability&1 != 0, p.valid()
}

func (p *program) Install(number, file int, closeOnExec bool) error {
	a := seccomp.AddFD{ID: p.request.ID, Flags: unix.SECCOMP_ADDFD_FLAG_SETFD, File: uint32(file), Number: uint32(number)}
	if closeOnExec {
		a.NewFlags = unix.O_CLOEXEC
	}
	if _, err := p.s.listener.Add(&a); err != nil {
		return fmt.Errorf("replace descriptor %d: %w", number, err)
	}
	p.replaced = true
	return nil
}

// Descriptors goes through all that the process has open: it is asked only
// where a socket is swapped.
func (p *program) Descriptors(file int) (described []graft.Descriptor, err error) {
	defer func() {
		if err != nil {
			graft.CloseWatches(described)
		}
	}()
	list, err := tracee.Descriptors(p.request.Thread, file)
	if err != nil {
		return nil, err
	}
	for _, d := range list {
		described = append(described, graft.Descriptor{Number: d.Number, CloseOnExec: d.CloseOnExec})
		last := &described[len(described)-1]
		for _, w := range d.Watches {
			epoll, err := p.File(w.Epoll)
			if errors.Is(err, unix.EBADF) { // it was closed meanwhile
				continue
			}
			if err != nil {
				return described, err
			}
			last.Watches = append(last.Watches, graft.Watch{Epoll: epoll, Events: w.Events, Data: w.Data})
		}
	}
	return described, p.valid()
}

// memory opens the memory of a program that waits for an answer. What is read or written there delays only
// calls of the same container.
func (p *program) memory() (*tracee.Memory, error) {
	m, err := p.s.openMemory(p.request.Thread)
	if verr := p.valid(); verr != nil {
		if err == nil {
			m.Close()
		}
		return nil, verr
	}
	return m, err
}

func (p *program) readAt(at uint64, b []byte) error {
	m, err := p.memory()
	if err != nil {
		return err
	}
	defer m.Close()
	return m.Read(at, b)
}

func (p *program) writeAt(at uint64, b []byte) error {
	m, err := p.memory()
	if err != nil {
		return err
	}
	defer m.Close()
	return m.Write(at, b)
}
