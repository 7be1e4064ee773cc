// Package journal records on file how to undo the agent's changes to containers' cgroups, so that a
// killed agent leaves no container frozen or slowed.
//
// Theory of operation. The journal is a mapped file of entries of a fixed size (layout:
// charge/journal/c/journal.h). An entry is written before the change that it undoes. One store of a
// word makes it valid, and one store of that word frees it. So a SIGKILL at any instruction leaves
// it either valid or free. tsugiki-undo, the undo helper, is a small process that shares the file
// and its lock. It waits at a socket whose other end only the agent has open. When the agent ends
// for any reason, the undo helper undoes the valid entries and exits. That releases the lock, so
// the next agent starts only then. If both are killed, the next agent's Restore starts another undo
// helper. Only the undo helper undoes, so there is one implementation.
//
// An entry names a file and the texts that the agent has written to it. The undo helper does not
// change a file that has another text: somebody else has written that.
//
// The package does not decide what to change, and changes nothing itself. It needs root
// (CAP_DAC_OVERRIDE if a cgroup is delegated to a user) and Linux 5.10 (PIDFD_NONBLOCK).
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

// Order is the kind of an entry. The undo helper undoes the kinds in the order of their numbers.
type Order uint32

// The undo helper reads the whole journal once for each Order. A frozen container is the most
// urgent. A quota is restored before its burst, because the kernel refuses a burst above the quota.
const (
	Thaw Order = iota + 1
	Quota
	Burst
	move
)

// Capacity is the number of entries that fit into a journal.
const Capacity = 16384

const (
	magic    = "tsugiUN1"
	pathSize = 880
	textSize = 64
)

// Limits of the waits for an undo helper on a loaded machine. Tests use longer ones.
var (
	busyWait  = 5 * time.Second  // for the undo helper of an agent that died
	helloWait = 10 * time.Second // for the greeting of a new undo helper
	workWait  = 30 * time.Second // for all entries; charge/journal/c/undo.c has the longest time of one
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
	valid    atomic.Uint32 // stored last; 0: the slot is free
	order    Order
	inode    uint64 // of the file or group; another one made later under the same name does not match
	original atomic.Uint32
	_        [12]byte
	// original is the index of the valid element of originals. A new original is written to the
	// other element. An empty text in ours matches nothing.
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

// Journal is an open undo journal. Several goroutines may call its methods.
type Journal struct {
	// UndoHelper is the path of tsugiki-undo. If it is empty, the program is looked for in the
	// usual places. Set it before the first call of a method.
	UndoHelper string

	file  *mapped.File
	guard guard

	mu     sync.Mutex // guards the fields below
	free   []uint32   // free slots below used
	closed bool
}

// Open maps the journal, and makes the file if there is none. Only root can read the file. Open
// waits for the undo helper of an agent that died. ErrBusy: another agent uses the journal.
func Open(path string) (*Journal, error) {
	f, err := mapped.Open(path, magic, mapped.HeaderSize+Capacity*slotSize, busyWait, nil)
	if err != nil {
		return nil, fmt.Errorf("open undo journal: %w", err)
	}
	j := &Journal{file: f}
	j.sweep()
	return j, nil
}

// sweep lists the free slots.
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

// used is the number of slots that have ever been used. The undo helper reads only these.
func (j *Journal) used() *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&j.file.Data[mapped.Spare]))
}

func (j *Journal) slot(i uint32) *slot {
	return (*slot)(unsafe.Pointer(&j.file.Data[mapped.HeaderSize+int(i)*slotSize]))
}

// step is called between stores, where a kill may come. Tests replace it to stop there.
var step = func(string) {}

// Entry is the record of one change to undo. One goroutine at a time may use it.
type Entry struct {
	journal *Journal
	index   uint32
}

// Write records how to undo a write to a cgroup's file, before that write. The undo helper writes
// original if the first line of the file, without surrounding space, is one of the texts in
// ours. There are at most two.
func (j *Journal) Write(order Order, file, original string, ours ...string) (*Entry, error) {
	if order < Thaw || order > Burst || len(ours) > 2 {
		return nil, fmt.Errorf("note how to undo %s: order %d with %d texts of ours", file, order, len(ours))
	}
	return j.add(file, "", order, func(s *slot) error {
		if original == "" {
			return errors.New("there is nothing to go back to")
		}
		if err := mapped.SetText(s.originals[0][:], original); err != nil {
			return err
		}
		for i, text := range ours {
			if err := s.ours[i].set(text); err != nil {
				return err
			}
		}
		return nil
	})
}

// Move records how to undo moving processes into a cgroup made for them, before they are moved. The
// undo helper moves every process of group to the cgroup to, until none is left, and removes group.
// If to was removed, the processes move to its nearest existing ancestor.
func (j *Journal) Move(group, to string) (*Entry, error) {
	if !proper(to) {
		return nil, fmt.Errorf("note how to undo %s: %q is not a clean absolute path of at most %d bytes", group, to, pathSize-1)
	}
	return j.add(group, to, move, func(*slot) error { return nil })
}

// proper tells whether a path is acceptable. The undo helper makes the same check.
func proper(path string) bool {
	return filepath.IsAbs(path) && filepath.Clean(path) == path && len(path) > 1 && len(path) < pathSize && strings.IndexByte(path, 0) < 0
}

func (j *Journal) add(path, to string, order Order, fill func(*slot) error) (*Entry, error) {
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
	} else if err := j.file.Reserve(mapped.HeaderSize+int(e.index)*slotSize, slotSize); err != nil {
		return nil, fmt.Errorf("note how to undo %s: %w", path, err)
	}
	s := j.slot(e.index)
	*(*[slotSize]byte)(unsafe.Pointer(s)) = [slotSize]byte{}
	step("clear")
	s.order, s.inode = order, st.Ino
	err := errors.Join(mapped.SetText(s.path[:], path), mapped.SetText(s.to[:], to), fill(s))
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

// Ours records the text that will be written next, before the write. present is the text that the
// file has. The entry keeps both: the file has the first one until the write, or if the write is
// refused, and the other one after it.
func (e *Entry) Ours(present, next string) error {
	ours := &e.journal.slot(e.index).ours
	if ours[0].is(next) || ours[1].is(next) {
		return nil
	}
	if ours[0].is(present) {
		return ours[1].set(next)
	}
	return ours[0].set(next)
}

func (t *text) set(s string) error {
	t.length.Store(0) // an empty text matches nothing while the bytes change
	step("text begun")
	if err := mapped.SetText(t.bytes[:], s); err != nil {
		return fmt.Errorf("note what is written: %w", err)
	}
	step("text written")
	t.length.Store(uint32(len(s)))
	step("text valid")
	return nil
}

func (t *text) is(other string) bool {
	n := t.length.Load()
	return n > 0 && int(n) < len(t.bytes) && string(t.bytes[:n]) == other
}

// Original records that somebody else has changed the file. The undo helper then restores that
// text.
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

// Suspend makes the entry invalid until Resume. That is cheaper than Done and a new entry.
func (e *Entry) Suspend() { _ = e.store(0) } // the error is ErrClosed: a closed journal has undone everything

// Resume makes a suspended entry valid again, before the file is written again. ErrClosed: no undo
// helper would undo the entry.
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

// Done frees the entry: there is nothing to undo any more. Do not use the entry afterwards. A
// second Done does nothing.
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
