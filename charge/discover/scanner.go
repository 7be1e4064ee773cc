// Package discover finds which processes work for which container. It finds containerd's shims and
// the loggers that they start, the conmon of podman and CRI-O, and the files that shared daemons
// (dockerd, containerd) use for each container.
//
// Theory of operation. A table has every process: pid, parent, start time, name. /proc/loadavg has
// the pid of the newest process. If it shows that no process has started since the last scan, a
// scan only polls the pidfds of the processes that matter. Otherwise the scan lists /proc. It reads
// the new processes, the young processes (they may still become another program by exec), and the
// processes whose parent has ended (they have another parent now). If a process that matters has
// changed, the containers are made anew from the table. The children of a shim that are in a
// container's cgroup are the container's. The oldest of them is the container's init. The other
// children are loggers.
//
// A container's processes can choose all that /proc shows of them. The comment of verify has the
// conditions for a helper. The scanner never reads the names, arguments or environment of a
// container's processes. A file that two containers claim counts for neither.
//
// The package charges nobody and changes nothing. It needs root (the namespaces and descriptors of
// others' processes) in the host's pid namespace, and Linux 5.3 (pidfd_open).
package discover

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/pidfd"
)

const (
	// settling is how long a new process is read again in each scan, because it may still become
	// another program by exec.
	settling = 3 * time.Second
	// fullEvery is the largest number of scans from one that lists /proc to the next.
	fullEvery = 30
)

// Scanner finds containers and helpers, and keeps the result of the last scan. One goroutine at a
// time may use it.
type Scanner struct {
	table      map[int]*proc
	young      map[int]time.Time // when to stop reading each in every scan
	named      map[int]bool      // pids that were passed to Daemon
	containers map[string]*found
	namespaces [2]string // ours
	latest     []byte    // pid of the newest process, from /proc/loadavg
	scans      uint64
	buffer     []byte
	orphans    bool // a process has lost its parent
	dirty      bool // a process that matters has changed
	stale      bool // the files must be looked for again
	nextLog    int  // the index of the container whose log is checked next
}

// New makes a scanner that has found nothing yet.
func New() *Scanner {
	return &Scanner{
		table:      map[int]*proc{},
		young:      map[int]time.Time{},
		named:      map[int]bool{},
		containers: map[string]*found{},
		buffer:     make([]byte, textMax),
	}
}

// Scan returns the changes since the last scan. An error means that /proc could not be read at all.
// Processes that end during the scan cause no error.
func (s *Scanner) Scan() (Changes, error) {
	for i, ns := range namespaces {
		if s.namespaces[i] != "" {
			continue
		}
		own, err := os.Readlink("/proc/self/" + ns)
		if err != nil {
			return Changes{}, fmt.Errorf("scan processes: %w", err)
		}
		s.namespaces[i] = own
	}
	s.poll()
	full, err := s.anyNew()
	if err != nil {
		return Changes{}, fmt.Errorf("scan processes: %w", err)
	}
	s.scans++
	if full {
		if err := s.list(); err != nil {
			return Changes{}, fmt.Errorf("scan processes: %w", err)
		}
	}
	s.lookAgain()
	if s.rotated() {
		s.dirty, s.stale = true, true
	}
	if !s.dirty {
		return Changes{}, nil
	}
	s.dirty = false
	return s.derive(), nil
}

// Close closes the descriptors.
func (s *Scanner) Close() {
	for _, p := range s.table {
		p.close()
	}
	clear(s.table)
}

// anyNew tells whether a process may have started since the last scan. The kernel gives out pids in
// turn, and the last field of /proc/loadavg is the newest one.
func (s *Scanner) anyNew() (bool, error) {
	text, err := s.read("/proc/loadavg")
	if err != nil {
		return false, err
	}
	latest := text[bytes.LastIndexByte(text, ' ')+1:]
	if bytes.Equal(latest, s.latest) && len(s.young) == 0 && s.scans%fullEvery != 0 {
		return false, nil
	}
	s.latest = append(s.latest[:0], latest...)
	return true, nil
}

// poll removes the processes that matter and have ended.
func (s *Scanner) poll() {
	var fds []unix.PollFd
	var of []*proc
	for _, p := range s.table {
		if p.fd != pidfd.None {
			fds = append(fds, unix.PollFd{Fd: int32(p.fd), Events: unix.POLLIN})
			of = append(of, p)
		}
	}
	if n, err := unix.Poll(fds, 0); err != nil || n == 0 {
		return
	}
	for i, fd := range fds {
		if fd.Revents != 0 {
			s.forget(of[i])
		}
	}
}

func (s *Scanner) forget(p *proc) {
	s.dirty = s.dirty || s.matters(p)
	s.orphans = true
	p.close()
	delete(s.table, p.PID)
	delete(s.named, p.PID)
	delete(s.young, p.PID)
}

// matters tells whether the result depends on a process.
func (s *Scanner) matters(p *proc) bool {
	parent := s.table[p.ppid]
	return p.role != nobody || p.fd != pidfd.None || parent != nil && (parent.role == shim || parent.role == monitor)
}

// list brings the table up to date with /proc.
func (s *Scanner) list() error {
	var new []int
	err := s.pids(func(pid int) {
		if p := s.table[pid]; p != nil {
			p.scan = s.scans
		} else {
			new = append(new, pid)
		}
	})
	if err != nil {
		return err
	}
	for _, pid := range new {
		s.table[pid] = &proc{Process: Process{PID: pid}, scan: s.scans, fd: pidfd.None}
		s.young[pid] = time.Now().Add(settling)
	}
	for _, p := range s.table {
		if p.scan != s.scans {
			s.forget(p)
		}
	}
	return nil
}

// lookAgain reads the young processes, and those that have another parent now. After all are read
// it gives roles, the oldest process first: a shim is older than a process in its container that
// pretends to be a shim.
func (s *Scanner) lookAgain() {
	now := time.Now()
	if s.orphans {
		for pid, p := range s.table {
			if _, young := s.young[pid]; !young && p.ppid != 0 && s.table[p.ppid] == nil {
				s.young[pid] = now
			}
		}
		s.orphans = false
	}
	var candidates []*proc
	for _, pid := range sortedKeys(s.young) {
		p := s.table[pid]
		if !now.Before(s.young[pid]) {
			p.settled = true
			delete(s.young, pid)
		}
		if s.look(p) {
			candidates = append(candidates, p)
		}
	}
	slices.SortFunc(candidates, func(a, b *proc) int { return cmp.Compare(a.Start, b.Start) })
	for _, p := range candidates {
		s.assume(p)
	}
}

// look reads a process, and tells whether the process may have a role and has none yet.
func (s *Scanner) look(p *proc) bool {
	text, err := s.read(p.path("stat"))
	st, ok := parseStat(text)
	if err != nil || !ok || p.Start != 0 && st.start != p.Start {
		s.forget(p) // the next scan finds the new process with this pid
		s.latest = s.latest[:0]
		return false
	}
	before := s.matters(p)
	p.stat, p.Start = st, st.start
	s.dirty = s.dirty || before || s.matters(p)
	s.serveMany(p)
	_, found := executables[st.comm]
	return found && p.role == nobody
}

// assume gives a process the role that its name suggests, if verify succeeds.
func (s *Scanner) assume(p *proc) {
	e := executables[p.comm]
	if !s.verify(p, e.names) {
		return
	}
	if flag, found := map[role]string{shim: "-id", monitor: "-c"}[e.role]; found {
		args, err := s.read(p.path("cmdline"))
		if err != nil {
			return
		}
		if p.id = argument(args, flag); p.id == "" {
			return
		}
	}
	p.role = e.role
	p.watch()
	s.dirty, s.stale = true, true
}
