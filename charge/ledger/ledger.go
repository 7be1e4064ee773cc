// Package ledger keeps per container the CPU time that it and others for it have
// used, in a mapped file, so that a killed agent forgets no balance.
//
// It owns the file and nothing else: it measures nothing and decides nothing. All
// values are stored atomically, one by one: a SIGKILL loses at most the sum that
// was about to be stored. A container is known by its name and the inode of its
// cgroup, which another container with the same name does not share; a file of
// another boot counts as empty.
//
// It needs no privileges beyond writing the folder; any kernel will do.
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
	// Capacity is how many containers a ledger has room for.
	Capacity = 4096
	// Sources is how many different sources a container can have; further ones are
	// summed up as Other.
	Sources = 24
	// NameSize and SourceSize are the most bytes of a container's and a source's name.
	NameSize, SourceSize = 255, 31
	// Other is the source of what had no room of its own.
	Other = "other"

	magic    = "tsugiLE1"
	busyWait = time.Second
)

var (
	// ErrBusy means that another agent uses the ledger.
	ErrBusy = mapped.ErrBusy
	// ErrFull means that the ledger has no room for another container.
	ErrFull = errors.New("ledger is full")
	// ErrClosed means that Close has been called.
	ErrClosed = errors.New("ledger is closed")
)

// Ledger is an open ledger. Its methods may be called by several goroutines.
type Ledger struct {
	file *mapped.File

	mu    sync.Mutex // guards what follows, and which slots are in use
	names map[string]*Entry
	free  []*slot // those below used
}

// Open maps the ledger, made if there is none. What it knew of containers is there
// as unopened entries. ErrBusy: another agent uses it.
func Open(path string) (*Ledger, error) {
	f, err := mapped.Open(path, magic, mapped.HeaderSize+Capacity*slotSize, busyWait, check)
	if err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	return load(f), nil
}

// load makes the entries of a file that check has found good.
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

// Aside says, when it is not empty, where an older or corrupt file has been moved,
// and why.
func (l *Ledger) Aside() string { return l.file.Aside }

// Entry opens the account of the container with this name whose cgroup has this
// inode. It is fresh if the ledger did not know it: another id under the same name
// starts at zero. A full ledger forgets a container that nobody has opened since
// the start; if there is none, ErrFull.
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
	_ = s.setName(name) // it fits
	s.id, s.since = id, time.Now().UnixNano()
	_ = mapped.SetText(s.sources[Sources].name[:], Other)
	s.sources[Sources].valid.Store(1)
	s.valid.Store(1)
	e = &Entry{ledger: l, name: name, id: id, slot: s}
	e.opened.Store(true)
	l.names[name] = e
	return e, true, nil
}

// take finds a free slot; mu is held.
func (l *Ledger) take() (*slot, error) {
	if l.names == nil {
		return nil, ErrClosed
	}
	if n := used(l.file.Data); len(l.free) == 0 && n.Load() < Capacity {
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

// forget frees an entry's slot; mu is held.
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

// Entries are all containers by name, also those that nobody has opened since the
// start.
func (l *Ledger) Entries() []*Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.SortedFunc(maps.Values(l.names), func(a, b *Entry) int { return strings.Compare(a.name, b.name) })
}

// Close unmaps the file. Entries are as if forgotten from then on, but are on file.
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
