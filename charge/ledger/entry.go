package ledger

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/tsugiki/tsugiki/internal/mapped"
)

// Entry is the account of one container. Several goroutines may call its methods. After the entry
// was forgotten they do nothing and return zero.
type Entry struct {
	ledger *Ledger
	name   string
	id     uint64
	opened atomic.Bool

	mu   sync.Mutex // guards slot, and the names of sources
	slot *slot      // nil: forgotten
}

// Name returns the container's name.
func (e *Entry) Name() string { return e.name }

// ID returns the inode of the container's cgroup.
func (e *Entry) ID() uint64 { return e.id }

// Since returns the time at which the account was made, by the wall clock. All sums begin then.
func (e *Entry) Since() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.slot == nil {
		return time.Time{}
	}
	return time.Unix(0, e.slot.since)
}

// Opened tells whether Ledger.Entry has returned the entry since the start.
func (e *Entry) Opened() bool { return e.opened.Load() }

// Add adds CPU time that a source has used for the container. The time may be negative. The time
// goes to Other if the container has no room for the source, or if the source's name is not valid.
func (e *Entry) Add(source string, d time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.slot != nil && d != 0 {
		e.slot.source(source).time.Add(int64(d))
	}
}

// source returns the sum of a source, and makes one if there is none.
func (s *slot) source(name string) *source {
	for i := range s.sources[:Sources] {
		src := &s.sources[i]
		if src.valid.Load() == 0 {
			if name == "" || name == Other || mapped.SetText(src.name[:], name) != nil {
				break
			}
			src.valid.Store(1)
			return src
		}
		if src.is(name) {
			return src
		}
	}
	return &s.sources[Sources]
}

func (s *source) is(name string) bool {
	return len(name) <= SourceSize && s.name[len(name)] == 0 && string(s.name[:len(name)]) == name
}

// Sources returns the sums by source. Other is among them only if it is not zero.
func (e *Entry) Sources() map[string]time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	sums := map[string]time.Duration{}
	if e.slot == nil {
		return sums
	}
	for i := range e.slot.sources {
		src := &e.slot.sources[i]
		if d := src.time.Load(); src.valid.Load() != 0 && (i < Sources || d != 0) {
			name, _ := mapped.Text(src.name[:])
			sums[name] = time.Duration(d)
		}
	}
	return sums
}

// SetDebt stores the container's debt.
func (e *Entry) SetDebt(d time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.slot != nil {
		e.slot.debt.Store(max(0, int64(d)))
	}
}

// Debt returns the debt that SetDebt stored.
func (e *Entry) Debt() time.Duration { return e.sum((*slot).debtSum) }

// AddOwn adds CPU time that the container itself has used.
func (e *Entry) AddOwn(d time.Duration) { e.add((*slot).ownSum, d) }

// Own returns the sum of AddOwn.
func (e *Entry) Own() time.Duration { return e.sum((*slot).ownSum) }

// AddForgiven adds debt that was forgiven.
func (e *Entry) AddForgiven(d time.Duration) { e.add((*slot).forgivenSum, d) }

// Forgiven returns the sum of AddForgiven.
func (e *Entry) Forgiven() time.Duration { return e.sum((*slot).forgivenSum) }

func (s *slot) debtSum() *atomic.Int64     { return &s.debt }
func (s *slot) ownSum() *atomic.Int64      { return &s.own }
func (s *slot) forgivenSum() *atomic.Int64 { return &s.forgiven }

// add adds to a sum that never decreases.
func (e *Entry) add(which func(*slot) *atomic.Int64, d time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.slot != nil {
		which(e.slot).Add(max(0, int64(d)))
	}
}

func (e *Entry) sum(which func(*slot) *atomic.Int64) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.slot == nil {
		return 0
	}
	return time.Duration(which(e.slot).Load())
}

// Forget frees the container's slot.
func (e *Entry) Forget() {
	e.ledger.mu.Lock()
	defer e.ledger.mu.Unlock()
	e.ledger.forget(e)
}
