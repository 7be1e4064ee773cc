// Package discover finds which processes work for which container: containerd's
// shims and what they start beside the container, podman's and CRI-O's conmon, and
// the files by which shared daemons (dockerd, containerd) do.
//
// Theory of operation. A table has every process: pid, parent, beginning, name. A
// scan that finds, by the number that /proc/loadavg has for the latest process, that
// none was begun, only polls the pidfds of the processes that matter. Otherwise it
// lists /proc and reads what is new there; what is young, for it may yet become
// another by exec; and those whose parent is gone, for they have another one now. If
// anything that matters has changed, the containers are made anew from the table:
// the children of a shim that are in a container's cgroup are the container's, the
// eldest of them is its init, and the others are loggers.
//
// All that /proc says of a container's processes is theirs to choose. What a
// helper must be to be taken for one is said at verify. Of a container, its
// processes' names, arguments and environment are never read; a file that two
// containers claim counts for neither.
//
// It charges nobody and changes nothing. It needs root (the namespaces and
// descriptors of others' processes) in the host's pid namespace, and Linux 5.3
// (pidfd_open).
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
	// settling is how long a new process is looked at again, because it may not
	// be yet what it will be.
	settling = 3 * time.Second
	// fullEvery is how many scans there are at most between two that list /proc.
	fullEvery = 30
)

// Scanner knows what the last scan has found. One goroutine at a time may use it.
type Scanner struct {
	table      map[int]*proc
	young      map[int]time.Time // until when they are looked at again
	named      map[int]bool      // daemons that we were told of
	containers map[string]*found
	namespaces [2]string // ours
	latest     []byte    // process, of /proc/loadavg
	scans      uint64
	buffer     []byte
	orphans    bool // some process has lost its parent
	dirty      bool // something that matters has changed
	stale      bool // the files have to be looked for again
	nextLog    int  // which container's log is looked at next
}

// New makes a scanner that knows of nothing yet.
func New() *Scanner {
	return &Scanner{
		table:      map[int]*proc{},
		young:      map[int]time.Time{},
		named:      map[int]bool{},
		containers: map[string]*found{},
		buffer:     make([]byte, textMax),
	}
}

// Scan looks what has changed. An error means that /proc could not be read at all;
// processes that end meanwhile are no error.
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

// Close gives the descriptors back.
func (s *Scanner) Close() {
	for _, p := range s.table {
		p.close()
	}
	clear(s.table)
}

// anyNew says whether a process may have begun since the last scan: pids are given
// out in turn, and the last field of /proc/loadavg is the latest.
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

// poll forgets the processes that matter and have ended.
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

// matters says whether the containers depend on a process.
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

// lookAgain reads the young, and those who have another parent now. Only when all are
// read, roles are given, in order of age: a shim is older than what pretends to be
// one in its container.
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

// look reads a process, and says whether it may have a role that it has not got yet.
func (s *Scanner) look(p *proc) bool {
	text, err := s.read(p.path("stat"))
	st, ok := parseStat(text)
	if err != nil || !ok || p.Start != 0 && st.start != p.Start {
		s.forget(p) // another one that has got its number is new to the next scan
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

// assume gives a process a role if it proves to be what it is called.
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
