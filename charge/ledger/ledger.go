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
	"sync"
	"sync/atomic"
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
	// ErrForgotten means that the entry has been forgotten.
	ErrForgotten = errors.New("container is no longer in the ledger")
)

// slot is how a container is on file.
type slot struct {
	valid               atomic.Uint32 // stored last; 0 is free
	_                   uint32
	id                  uint64
	debt, own, forgiven atomic.Int64
	name                [NameSize + 1]byte
	sources             [Sources + 1]source // the last one is Other
}

type source struct {
	time  atomic.Int64
	valid atomic.Uint32 // stored after the name
	name  [SourceSize + 1]byte
	_     uint32
}

const slotSize = int(unsafe.Sizeof(slot{}))

// Ledger is an open ledger. Its methods may be called by several goroutines.
type Ledger struct {
	mu    sync.Mutex // guards which slots and sources are in use
	file  *mapped.File
	names map[string]*Entry
}

// Entry is one container's account. Its methods may be called by several
// goroutines; after Forget they do nothing and return zero.
type Entry struct {
	ledger *Ledger
	slot   *slot
	opened bool // since the start
}

// Open maps the ledger, made if there is none. What it knew of containers is there
// as unopened entries.
func Open(path string) (*Ledger, error) {
	f, err := mapped.Open(path, magic, mapped.HeaderSize+Capacity*slotSize, busyWait)
	if err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	return &Ledger{file: f, names: map[string]*Entry{}}, nil
}

// Aside says, when it is not empty, where an older or corrupt file has been moved,
// and why.
func (l *Ledger) Aside() string { return l.file.Aside }

// Entry opens the account of the container with this name whose cgroup has this
// inode. It is fresh if the ledger did not know it: another id under the same name
// starts at zero.
func (l *Ledger) Entry(name string, id uint64) (e *Entry, fresh bool, err error) {
	return nil, false, errors.ErrUnsupported
}

// Entries are all containers, also those that nobody has opened since the start.
func (l *Ledger) Entries() []*Entry { return nil }

// Close unmaps the file; no entry may be used after it.
func (l *Ledger) Close() error { return l.file.Close() }

// Name is the container's.
func (e *Entry) Name() string { return "" }

// ID is the inode of the container's cgroup.
func (e *Entry) ID() uint64 { return e.slot.id }

// Opened says whether somebody has opened it since the start.
func (e *Entry) Opened() bool { return e.opened }

// Add adds CPU time that a source has used for the container; it may be negative.
func (e *Entry) Add(source string, d time.Duration) {}

// Sources are the sums by source.
func (e *Entry) Sources() map[string]time.Duration { return nil }

// SetDebt stores what is still to be taken from the container.
func (e *Entry) SetDebt(d time.Duration) {}

// Debt is what SetDebt stored.
func (e *Entry) Debt() time.Duration { return 0 }

// AddOwn adds CPU time that the container has used itself.
func (e *Entry) AddOwn(d time.Duration) {}

// Own is the sum of AddOwn.
func (e *Entry) Own() time.Duration { return 0 }

// AddForgiven adds debt that nobody will ask for any more.
func (e *Entry) AddForgiven(d time.Duration) {}

// Forgiven is the sum of AddForgiven.
func (e *Entry) Forgiven() time.Duration { return 0 }

// Forget frees the container's place.
func (e *Entry) Forget() {}
