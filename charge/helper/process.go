// Package helper is processes that work for one container: how much CPU time they
// have used, and how they are put under the container's quota.
//
// It does not find them, and charges nobody. A helper that can be placed below the
// container's group of the cpu hierarchy needs no measuring: the kernel enforces the
// quota. In cgroup v1 that concerns CPU time alone; limits of memory, the freezer and
// the rest have hierarchies of their own. In v2 there is one hierarchy: who freezes
// or kills the group that a helper is placed below gets the helper too. There,
// place only below a group whose container has a child group of its own.
//
// Reading clocks needs no privileges; placing needs root. The oldest kernel is
// Linux 5.10 (PIDFD_NONBLOCK).
package helper

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tsugiki/tsugiki/internal/sys/pidfd"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/charge/bandwidth"
	"github.com/tsugiki/tsugiki/internal/cputime"
)

// Process is a process, known by a pidfd: another one that gets its number is not
// taken for it. Its methods may be called by several goroutines.
type Process struct {
	pid   int
	name  string
	clock int32
	fd    int // of file
	file  *os.File

	mu    sync.Mutex // guards what follows
	last  time.Duration
	alarm alarm
	shut  bool
}

// Open opens a process; os.ErrProcessDone if there is none.
func Open(pid int) (*Process, error) {
	file, err := pidfd.Open(pid)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) && pid <= 0 {
		err = os.ErrProcessDone
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	p := &Process{pid: pid, clock: cputime.ProcessClock(pid), file: file}
	raw, err := file.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { p.fd = int(fd) })
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open process %d: %w", pid, err), file.Close())
	}
	comm, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	p.name = strings.TrimSuffix(string(comm), "\n")
	if _, err := p.Elapsed(); err != nil { // also that comm was its own
		return nil, errors.Join(err, file.Close())
	}
	return p, nil
}

// PID is its process id.
func (p *Process) PID() int { return p.pid }

// Name is what the kernel called it when it was opened (at most 15 bytes). A
// process can call itself anything.
func (p *Process) Name() string { return p.name }

// Elapsed is the CPU time that it has used, all threads together (nanoseconds, not
// ticks). When it has ended and its parent knows: the last that was seen, and
// os.ErrProcessDone.
func (p *Process) Elapsed() (time.Duration, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shut {
		return p.last, fmt.Errorf("read clock of process %d: %w", p.pid, os.ErrClosed)
	}
	var now unix.Timespec
	err := unix.ClockGettime(p.clock, &now)
	if err == nil && p.last != 0 && time.Duration(now.Nano()) == p.last {
		return p.last, nil // of another process it would be another time
	}
	// As long as it is there, if only as a zombie, the number was its own while the
	// clock was read; EPERM is of one that is there.
	switch gone := unix.PidfdSendSignal(p.fd, 0, nil, 0); {
	case errors.Is(gone, unix.ESRCH):
		return p.last, fmt.Errorf("read clock of process %d: %w", p.pid, os.ErrProcessDone)
	case gone != nil && !errors.Is(gone, unix.EPERM):
		return p.last, fmt.Errorf("read clock of process %d: %w", p.pid, gone)
	}
	if err != nil {
		return p.last, fmt.Errorf("read clock of process %d: %w", p.pid, err)
	}
	p.last = time.Duration(now.Nano())
	return p.last, nil
}

// Await waits for its end, or Close.
func (p *Process) Await() { pidfd.Await(p.file) }

// Close gives the descriptor back.
func (p *Process) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shut = true
	return errors.Join(p.closeAlarm(), p.file.Close())
}

// Group is a cgroup whose processes all work for one container.
type Group struct{ *bandwidth.Group }

// OfGroup opens a helper cgroup: a directory of the cpu hierarchy, or a path
// relative to its mount.
func OfGroup(path string) (*Group, error) {
	g, err := bandwidth.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open helper group: %w", err)
	}
	if g.Root() {
		return nil, errors.Join(fmt.Errorf("open helper group %s: it is everybody's", path), g.Close())
	}
	// Its clock is read each tenth of a second.
	return &Group{g}, g.Keep(true)
}

// Elapsed is the CPU time that the group and those below it have used;
// os.ErrProcessDone when it has been removed.
func (g *Group) Elapsed() (time.Duration, error) {
	d, err := g.Usage()
	if err != nil && g.Gone() {
		err = fmt.Errorf("read usage of %s: %w", g.Path(), os.ErrProcessDone)
	}
	return d, err
}

// Name is the last part of its path.
func (g *Group) Name() string {
	path := g.Path()
	return path[strings.LastIndexByte(path, '/')+1:]
}
