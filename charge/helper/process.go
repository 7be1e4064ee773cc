// Package helper handles processes that work for one container. It measures their CPU time, and
// places them under the container's quota.
//
// It does not find helpers and charges nobody. A helper that is placed below the container's group
// of the cpu hierarchy needs no measuring: the kernel enforces the quota. In cgroup v1 placing
// affects only CPU time, because memory limits, the freezer and the other controllers have
// hierarchies of their own. In v2 there is one hierarchy: a freeze or a kill of the group affects a
// helper below it, too. So in v2 a helper is placed only below a group in which the container has a
// child group of its own.
//
// Reading clocks needs no privileges. Placing needs root. The oldest kernel is Linux 5.10
// (PIDFD_NONBLOCK).
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

// Process is a process that is identified by a pidfd. A later process with the same pid is not
// mistaken for it. Several goroutines may call its methods.
type Process struct {
	pid   int
	name  string
	clock int32
	fd    int // of file
	file  *os.File

	mu    sync.Mutex // guards the fields below
	last  time.Duration
	alarm alarm
	shut  bool
}

// Open opens a process. os.ErrProcessDone: there is no such process.
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
	if _, err := p.Elapsed(); err != nil { // also shows that comm was this process's
		return nil, errors.Join(err, file.Close())
	}
	return p, nil
}

// PID returns the process id.
func (p *Process) PID() int { return p.pid }

// Name returns the name that the process had when it was opened, at most 15 bytes. A process can
// choose any name.
func (p *Process) Name() string { return p.name }

// Elapsed returns the CPU time of all threads of the process, in nanoseconds and not in ticks.
// After the process has ended and its parent has waited for it, Elapsed returns the last known time
// and os.ErrProcessDone.
func (p *Process) Elapsed() (time.Duration, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shut {
		return p.last, fmt.Errorf("read clock of process %d: %w", p.pid, os.ErrClosed)
	}
	var now unix.Timespec
	err := unix.ClockGettime(p.clock, &now)
	if err == nil && p.last != 0 && time.Duration(now.Nano()) == p.last {
		return p.last, nil // another process would have another time
	}
	// While the process exists, even as a zombie, no other process has its pid. So the clock that
	// was read is its own. EPERM also means that the process exists.
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

// Await waits until the process ends or Close is called.
func (p *Process) Await() { pidfd.Await(p.file) }

// Ended tells whether the process has ended or Close was called. A zombie has ended.
func (p *Process) Ended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shut {
		return true
	}
	end := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
	n, _ := unix.Poll(end, 0)
	return n > 0
}

// Close deletes the timer and closes the pidfd.
func (p *Process) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shut = true
	return errors.Join(p.closeAlarm(), p.file.Close())
}

// Group is a cgroup whose processes all work for one container.
type Group struct{ *bandwidth.Group }

// OfGroup opens the cgroup of helpers. The path is a directory of the cpu hierarchy, or a path
// relative to its mount.
func OfGroup(path string) (*Group, error) {
	g, err := bandwidth.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open helper group: %w", err)
	}
	if g.Root() {
		return nil, errors.Join(fmt.Errorf("open helper group %s: it is the root, which holds all processes", path), g.Close())
	}
	// Its clock is read every 100 ms.
	return &Group{g}, g.Keep(true)
}

// Elapsed returns the CPU time that the group and its child groups have used. os.ErrProcessDone:
// the group was removed.
func (g *Group) Elapsed() (time.Duration, error) {
	d, err := g.Usage()
	if err != nil && g.Gone() {
		err = fmt.Errorf("read usage of %s: %w", g.Path(), os.ErrProcessDone)
	}
	return d, err
}

// Name returns the last element of the group's path.
func (g *Group) Name() string {
	path := g.Path()
	return path[strings.LastIndexByte(path, '/')+1:]
}
