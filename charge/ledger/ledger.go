// Package ledger stores, for each container, the CPU time that it used and that others used for it.
// It stores them in a mapped file, so that a killed agent loses no debt.
//
// It owns only the file. It measures nothing and decides nothing. Each value is stored atomically,
// so a SIGKILL loses at most the sum that was about to be stored. A container is identified by its
// name and the inode of its cgroup: a later container with the same name has another inode. A file
// of an earlier boot counts as empty.
//
// The package needs write access to the folder and no other privileges. It needs no particular
// kernel.
package ledger

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/tsugiki/tsugiki/internal/mapped"
)

const (
	// Capacity is the number of containers that fit into a ledger.
	Capacity = 4096
	// Sources is the number of sources that a container can have. The time of further sources is
	// added to Other.
	Sources = 24
	// NameSize and SourceSize are the longest names of a container and of a source, in bytes.
	NameSize, SourceSize = 255, 31
	// Other is the source for the time of sources that have no room of their own.
	Other = "other"

	magic    = "tsugiLE1"
	busyWait = 5 * time.Second // a child of a killed agent may have the lock until it executes a program
)

var (
	// ErrBusy means that another agent uses the ledger.
	ErrBusy = mapped.ErrBusy
	// ErrFull means that the ledger has no room for another container.
	ErrFull = errors.New("ledger is full")
	// ErrClosed means that Close has been called.
	ErrClosed = errors.New("ledger is closed")
)

// Ledger is an open ledger. Several goroutines may call its methods.
type Ledger struct {
	file *mapped.File

	mu    sync.Mutex // guards the fields below, and which slots are in use
	names map[string]*Entry
	free  []*slot // free slots below used
}

// Open maps the ledger, and makes the file if there is none. The containers in the file become
// entries that are not opened yet. ErrBusy: another agent uses the ledger.
func Open(path string) (*Ledger, error) {
	f, err := mapped.Open(path, magic, mapped.HeaderSize+Capacity*slotSize, busyWait, check)
	if err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	return load(f), nil
}

// load makes the entries of a file that has passed check.
func load(f *mapped.File) *Ledger {
	l := &Ledger{file: f, names: map[string]*Entry{}}
	for i := range used(f.Data).Load() {
		s := slotOf(f.Data, i)
		if s.valid.Load() == 0 {
			l.free = append(l.free, s)
			continue
		}
		name, _ := mapped.Text(s.name[:])
		l.names[name] = &Entry{ledger: l, name: name, id: s.id, slot: s}
	}
	return l
}

// Aside returns where an older or corrupt file was moved, and why. It is empty if none was moved.
func (l *Ledger) Aside() string { return l.file.Aside }

// Entry opens the account of a container by its name and the inode of its cgroup. fresh tells that
// the ledger did not have the account. Another id under a known name starts at zero. A full ledger
// forgets a container that was not opened since the start. ErrFull: there is none to forget.
func (l *Ledger) Entry(name string, id uint64) (e *Entry, fresh bool, err error) {
	if err := new(slot).setName(name); err != nil {
		return nil, false, fmt.Errorf("open account: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e = l.names[name]
	if e != nil && e.id == id {
		e.opened.Store(true)
		return e, false, nil
	}
	if e != nil {
		l.forget(e)
	}
	s, err := l.take()
	if err != nil {
		return nil, false, fmt.Errorf("open account of %s: %w", name, err)
	}
	*(*[slotSize]byte)(unsafe.Pointer(s)) = [slotSize]byte{}
	_ = s.setName(name) // the new slot above has accepted the name
	s.id, s.since = id, time.Now().UnixNano()
	_ = mapped.SetText(s.sources[Sources].name[:], Other)
	s.sources[Sources].valid.Store(1)
	s.valid.Store(1)
	e = &Entry{ledger: l, name: name, id: id, slot: s}
	e.opened.Store(true)
	l.names[name] = e
	return e, true, nil
}

// take returns a free slot. The caller holds mu.
func (l *Ledger) take() (*slot, error) {
	if l.names == nil {
		return nil, ErrClosed
	}
	if n := used(l.file.Data); len(l.free) == 0 && n.Load() < Capacity {
		if err := l.file.Reserve(mapped.HeaderSize+int(n.Load())*slotSize, slotSize); err != nil {
			return nil, err
		}
		n.Add(1)
		return slotOf(l.file.Data, n.Load()-1), nil
	}
	for _, e := range l.names {
		if len(l.free) > 0 {
			break
		}
		if !e.opened.Load() {
			l.forget(e)
		}
	}
	n := len(l.free)
	if n == 0 {
		return nil, ErrFull
	}
	s := l.free[n-1]
	l.free = l.free[:n-1]
	return s, nil
}

// forget frees an entry's slot. The caller holds mu.
func (l *Ledger) forget(e *Entry) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.slot == nil {
		return
	}
	e.slot.valid.Store(0)
	l.free = append(l.free, e.slot)
	delete(l.names, e.name)
	e.slot = nil
}

// Entries returns all entries sorted by name, including those that were not opened since the start.
func (l *Ledger) Entries() []*Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.SortedFunc(maps.Values(l.names), func(a, b *Entry) int { return strings.Compare(a.name, b.name) })
}

// Close unmaps the file. The entries then behave as if forgotten, but stay in the file.
func (l *Ledger) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.names == nil {
		return nil
	}
	for _, e := range l.names {
		e.mu.Lock()
		e.slot = nil
		e.mu.Unlock()
	}
	l.names = nil
	if err := l.file.Close(); err != nil {
		return fmt.Errorf("close ledger: %w", err)
	}
	return nil
}
