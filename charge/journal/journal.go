// Package journal remembers on file how to undo what the agent does to other
// people's cgroups, so that a killed agent leaves no container frozen or slowed.
//
// Theory of operation. The journal is a mapped file of fixed-size entries (layout:
// charge/journal/c/journal.h). An entry is written before the thing it undoes is
// done, is valid from the store of one word on, and free from the store of that
// word on: a SIGKILL at any instruction leaves either state. tsugiki-undo, a
// small process that shares the file and its lock, sits at a socket that only the
// agent holds open. When the agent ends, however it ends, the undo helper walks the
// file, undoes what is valid, and ends; the lock goes with it, so that the next
// agent starts only then. If both are killed, the next agent's Restore lets another
// undo helper do it. Only the undo helper undoes: there is one implementation.
//
// Entries name files, and what they may hold: a value that somebody else has
// written meanwhile is never overwritten.
//
// It does not decide what to change, and changes nothing itself. It needs root
// (CAP_DAC_OVERRIDE where a cgroup is delegated to a user) and Linux 5.10
// (PIDFD_NONBLOCK).
package journal

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/mapped"
)

// Order says when an entry is undone, among others.
type Order uint32

// The undo helper goes through the journal once per order, lowest first. A frozen
// container cannot wait; a quota cannot be below its burst.
const (
	Thaw Order = iota + 1
	Quota
	Burst
	move
)

// Capacity is how many things can be waiting to be undone.
const Capacity = 16384

const (
	magic    = "tsugiUN1"
	pathSize = 880
	textSize = 64
)

// How long an undo helper is waited for, on a loaded machine. Tests wait longer.
var (
	busyWait  = 5 * time.Second  // for another agent's, that died
	helloWait = 10 * time.Second // for its start
	workWait  = 30 * time.Second // for all entries; see charge/journal/c/undo.c for the longest of one
)

var (
	// ErrBusy means that another agent uses the journal.
	ErrBusy = mapped.ErrBusy
	// ErrFull means that the journal has no room for another entry.
	ErrFull = errors.New("undo journal is full")
	// ErrClosed means that Close has been called.
	ErrClosed = errors.New("undo journal is closed")
)

// slot is struct journal_entry of charge/journal/c/journal.h.
type slot struct {
	valid    atomic.Uint32 // stored last; 0 is free
	order    Order
	inode    uint64 // of the file or group: one made anew under its name is another
	original atomic.Uint32
	_        [12]byte
	// Of the originals only the one with the number above counts, so that another can
	// be written beside it. An empty text of ours matches nothing.
	originals [2][textSize]byte
	ours      [2]text
	path      [pathSize]byte
	to        [pathSize]byte
}

type text struct {
	length atomic.Uint32 // stored last
	bytes  [textSize - 4]byte
}

const slotSize = 2048

// Journal is an open undo journal. Its methods may be called by several goroutines.
type Journal struct {
	// UndoHelper is the path of tsugiki-undo; empty looks in the usual places.
	// It is for before the first call of another method.
	UndoHelper string

	file  *mapped.File
	guard guard

	mu     sync.Mutex // guards what follows
	free   []uint32   // slots below used that are free
	closed bool
}

// Open maps the journal, made if there is none; only root can read it. While the
// undo helper of an agent that died still works, Open waits. ErrBusy: another agent
// uses it.
func Open(path string) (*Journal, error) {
	f, err := mapped.Open(path, magic, mapped.HeaderSize+Capacity*slotSize, busyWait, nil)
	if err != nil {
		return nil, fmt.Errorf("open undo journal: %w", err)
	}
	j := &Journal{file: f}
	j.sweep()
	return j, nil
}

// sweep finds the free slots.
func (j *Journal) sweep() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.used().Load() > Capacity {
		j.used().Store(Capacity)
	}
	j.free = j.free[:0]
	for i := range j.used().Load() {
		if j.slot(i).valid.Load() == 0 {
			j.free = append(j.free, i)
		}
	}
}

// used is how many slots have ever been used: what the undo helper looks at.
func (j *Journal) used() *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&j.file.Data[mapped.Spare]))
}

func (j *Journal) slot(i uint32) *slot {
	return (*slot)(unsafe.Pointer(&j.file.Data[mapped.HeaderSize+int(i)*slotSize]))
}

// step is called between stores that a kill can come between. Tests stop there.
var step = func(string) {}

// Entry is one thing to undo. One goroutine at a time may use it.
type Entry struct {
	journal *Journal
	index   uint32
	next    int // which of ours is the older one
}

// Write notes, before a file of a cgroup is written, how to undo that: while the
// first line of the file is one of the last two texts of ours, without space around
// it, write original.
func (j *Journal) Write(order Order, file, original string, ours ...string) (*Entry, error) {
	if order < Thaw || order > Burst || len(ours) > 2 {
		return nil, fmt.Errorf("note how to undo %s: order %d with %d texts of ours", file, order, len(ours))
	}
	return j.add(file, "", order, func(e *Entry, s *slot) error {
		if original == "" {
			return errors.New("there is nothing to go back to")
		}
		if err := mapped.SetText(s.originals[0][:], original); err != nil {
			return err
		}
		for _, text := range ours {
			if err := e.Ours(text); err != nil {
				return err
			}
		}
		return nil
	})
}

// Move notes, before processes are moved into a cgroup made for them, how to undo
// that: move every process of group to the cgroup to (or, where that is gone, to
// the nearest ancestor there is), until none is left, and remove group.
func (j *Journal) Move(group, to string) (*Entry, error) {
	if !proper(to) {
		return nil, fmt.Errorf("note how to undo %s: %q is not a clean absolute path of at most %d bytes", group, to, pathSize-1)
	}
	return j.add(group, to, move, func(*Entry, *slot) error { return nil })
}

// proper is what the undo helper demands of a path as well.
func proper(path string) bool {
	return filepath.IsAbs(path) && filepath.Clean(path) == path && len(path) > 1 && len(path) < pathSize && strings.IndexByte(path, 0) < 0
}

func (j *Journal) add(path, to string, order Order, fill func(*Entry, *slot) error) (*Entry, error) {
	if !proper(path) {
		return nil, fmt.Errorf("note how to undo %q: not a clean absolute path of at most %d bytes", path, pathSize-1)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, fmt.Errorf("note how to undo %s: %w", path, err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return nil, fmt.Errorf("note how to undo %s: %w", path, ErrClosed)
	}
	e := &Entry{journal: j}
	n := len(j.free)
	if n > 0 {
		e.index = j.free[n-1]
	} else if e.index = j.used().Load(); e.index == Capacity {
		return nil, fmt.Errorf("note how to undo %s: %w", path, ErrFull)
	}
	s := j.slot(e.index)
	*(*[slotSize]byte)(unsafe.Pointer(s)) = [slotSize]byte{}
	step("clear")
	s.order, s.inode = order, st.Ino
	err := errors.Join(mapped.SetText(s.path[:], path), mapped.SetText(s.to[:], to), fill(e, s))
	if err != nil {
		return nil, fmt.Errorf("note how to undo %s: %w", path, err)
	}
	if n > 0 {
		j.free = j.free[:n-1]
	} else {
		j.used().Store(e.index + 1)
	}
	step("filled")
	s.valid.Store(1)
	step("valid")
	return e, nil
}

// Ours says what will be written next, before it is. The last two are kept: the
// file has the former until the write, and the latter from then on.
func (e *Entry) Ours(text string) error {
	t := &e.journal.slot(e.index).ours[e.next]
	if newest := &e.journal.slot(e.index).ours[1-e.next]; newest.is(text) {
		return nil
	}
	t.length.Store(0) // matches nothing while it is half written
	step("text begun")
	if err := mapped.SetText(t.bytes[:], text); err != nil {
		return fmt.Errorf("note what is written: %w", err)
	}
	step("text written")
	t.length.Store(uint32(len(text)))
	step("text valid")
	e.next = 1 - e.next
	return nil
}

func (t *text) is(other string) bool {
	n := t.length.Load()
	return n > 0 && int(n) < len(t.bytes) && string(t.bytes[:n]) == other
}

// Original says that somebody else has changed the file: this is what to go back to
// from now on.
func (e *Entry) Original(text string) error {
	s := e.journal.slot(e.index)
	if text == "" {
		return errors.New("note what to go back to: nothing")
	}
	other := 1 - s.original.Load()&1
	if err := mapped.SetText(s.originals[other][:], text); err != nil {
		return fmt.Errorf("note what to go back to: %w", err)
	}
	step("original written")
	s.original.Store(other)
	step("original valid")
	return nil
}

// Suspend says that there is nothing to undo until Resume. To write an entry anew costs
// more.
func (e *Entry) Suspend() { _ = e.store(0) } // a closed journal has nothing to undo

// Resume says, before the file is written again, that it is to be undone as Write has
// said. ErrClosed: nobody would undo it.
func (e *Entry) Resume() error { return e.store(1) }

func (e *Entry) store(valid uint32) error {
	j := e.journal
	j.mu.Lock()
	defer j.mu.Unlock()
	if e.index == Capacity || j.closed {
		return ErrClosed
	}
	j.slot(e.index).valid.Store(valid)
	step("stored")
	return nil
}

// Done says that there is nothing to undo any more. The entry must not be used
// after it; a second Done does nothing.
func (e *Entry) Done() {
	j := e.journal
	j.mu.Lock()
	defer j.mu.Unlock()
	if e.index == Capacity || j.closed {
		return
	}
	j.slot(e.index).valid.Store(0)
	step("done")
	j.free = append(j.free, e.index)
	e.index = Capacity
}
