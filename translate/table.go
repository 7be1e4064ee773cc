// Package translate maps the IPv6 addresses of remote hosts to virtual IPv4 addresses, which exist
// only inside one container. It also computes the addresses of NAT64.
//
// It owns the tables of a container, the pool of its virtual addresses, and the arithmetic of
// addresses and of their names. It opens no socket and knows no DNS message. It needs the privilege
// to write the file of a table, and Linux 2.6.39 (CLOCK_BOOTTIME).
//
// Theory of operation. A table is an array with one slot per address of the pool, and a map from
// IPv6 addresses to slots. The array is the table "46": an IPv4 address is an index. The map is the
// table "64". Both change under one lock, so each is always the inverse of the other. A mapping is
// in use while sockets hold it, and until a deadline. Each DNS answer and each new peer moves the
// deadline. A mapping that is out of use stays, because programs keep addresses longer than they
// should. When the pool has no unused address left, the mapping that has been out of use for the
// longest time is reclaimed.
package translate

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/mapped"
)

// DefaultPrefix is the default pool of virtual addresses: the range for benchmarks of devices (RFC
// 2544), which no network routes.
var DefaultPrefix = netip.MustParsePrefix("198.18.0.0/15")

const (
	// Grace is how long a mapping outlives the DNS answer that contained it, or the datagram that
	// came from its host. A program has this time from its last look at a record to connect(2).
	Grace = time.Minute
	// MaxTTL is the longest time for which an answer keeps a mapping in use.
	MaxTTL = time.Hour
)

var (
	// ErrExhausted says that every virtual address of the container is in use.
	ErrExhausted = errors.New("no virtual IPv4 address is free")
	// ErrSpecial says that an address does not belong to a remote host.
	ErrSpecial = errors.New("address is special")
	// ErrState says that the file of a table cannot be used.
	ErrState = errors.New("translation table on file")
)

// Options has the settings of a table.
type Options struct {
	// Prefix is the pool. The zero value is DefaultPrefix. It has 12 to 30 bits. Its first and last
	// address are not given out. It also limits the memory: a mapping takes about 90 B.
	Prefix netip.Prefix
	// Refuse tells which IPv6 addresses get no virtual one, in addition to special addresses: the
	// host's own. If it cannot tell, no new virtual address is given out. It may be nil. The table's
	// lock is held during the call.
	Refuse func(netip.Addr) (bool, error)
	// Mapped is called with each new mapping, before Map returns it. It may be nil. The table's lock
	// is held during the call.
	Mapped func(v4, v6 netip.Addr)
	// Clock returns the time since the machine's boot. nil is CLOCK_BOOTTIME.
	Clock func() time.Duration
	// File is the path of a file that keeps the table over restarts of the process, until the
	// machine's next boot. If it is empty, the table is only in memory.
	File string
}

// slot is the record of one virtual address in the file. A slot is valid if sum is not zero. sum is
// stored last, so that a SIGKILL at any instruction leaves a whole mapping or none.
type slot struct {
	v6    [16]byte
	until int64 // time since boot in ns; the mapping is in use until then
	sum   uint32
	_     uint32
}

// use is the state of a slot that only this process has.
type use struct {
	holds uint32 // number of sockets that hold the mapping
	idle  bool   // the queue has the slot
}

// Table has the mappings of one container. Several goroutines may call its methods.
type Table struct {
	prefix netip.Prefix
	refuse func(netip.Addr) (bool, error)
	mapped func(v4, v6 netip.Addr)
	clock  func() time.Duration
	file   *mapped.File // nil: in memory

	mu    sync.RWMutex // guards the fields below
	slots []slot       // the whole pool
	uses  []use        // of slots[1] to the last that was ever used; uses[0] is unused
	six   map[[16]byte]uint32
	gaps  []uint32 // slots below len(uses) that are empty
	idle  queue
	stats Stats
}

// Stats has counts since the table was made or opened. Mappings is the present number of mappings.
type Stats struct {
	Mappings  int
	Created   uint64
	Reclaimed uint64
	Exhausted uint64 // addresses without a virtual one because all were in use
	Refused   uint64 // addresses without a virtual one because they are special or the host's, or may be
}

// Mapping is one line of a table.
type Mapping struct {
	V4, V6  netip.Addr
	Sockets uint32
	Until   time.Duration // since boot; an answer or a peer holds the mapping until then
}

// New makes a table, or opens the one of Options.File. It fails with ErrState unless a table with
// these options has written the file since the machine's boot. The file then stays unchanged, so
// that no later call gives out addresses that programs still use for other hosts.
func New(o Options) (*Table, error) {
	if o.Prefix == (netip.Prefix{}) {
		o.Prefix = DefaultPrefix
	}
	if a := o.Prefix.Addr(); !a.Is4() || o.Prefix.Bits() < 12 || o.Prefix.Bits() > 30 || o.Prefix != o.Prefix.Masked() {
		return nil, fmt.Errorf("virtual addresses %s: want an IPv4 prefix of 12 to 30 bits, the others zero", o.Prefix)
	}
	t := &Table{prefix: o.Prefix, refuse: o.Refuse, mapped: o.Mapped, clock: o.Clock, six: map[[16]byte]uint32{}, uses: make([]use, 1)}
	if t.clock == nil {
		t.clock = sinceBoot
	}
	n := 1 << (32 - o.Prefix.Bits())
	if o.File == "" {
		t.slots = make([]slot, n)
		return t, nil
	}
	if err := t.open(o.File, n); err != nil {
		return nil, fmt.Errorf("%w %s: %w; end the container and remove the file", ErrState, o.File, err)
	}
	return t, nil
}

func sinceBoot() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // fails for unknown clocks only
	return time.Duration(ts.Nano())
}

// Close closes the table's file. Call no other method after it.
func (t *Table) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.file == nil {
		return nil
	}
	f := t.file
	t.file, t.slots = nil, nil
	return f.Close()
}

// Prefix returns the pool.
func (t *Table) Prefix() netip.Prefix { return t.prefix }

// Map returns the virtual address of an IPv6 address: the existing one or a new one. The mapping is
// in use for at least ttl and Grace from now on. ttl is the TTL of a DNS answer, or zero for a peer
// that a socket has heard from. Map fails with ErrSpecial, ErrExhausted, and errors of
// Options.Refuse.
func (t *Table) Map(v6 netip.Addr, ttl time.Duration) (netip.Addr, error) {
	until := t.clock() + max(0, min(ttl, MaxTTL)) + Grace
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.refused(v6); err != nil {
		t.stats.Refused++
		return netip.Addr{}, fmt.Errorf("virtual address for %s: %w", v6, err)
	}
	i, ok := t.six[v6.As16()]
	if ok {
		t.slots[i].until = max(t.slots[i].until, int64(until))
		return t.at(i), nil
	}
	i, err := t.take()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("virtual address for %s: %w", v6, err)
	}
	t.slots[i].set(i, v6, until)
	t.six[v6.As16()] = i
	t.toIdle(i)
	t.stats.Created++
	if t.mapped != nil {
		t.mapped(t.at(i), v6)
	}
	return t.at(i), nil
}

// Usable tells whether Map gives a virtual address to an IPv6 address, provided that one is free.
func (t *Table) Usable(v6 netip.Addr) bool { return t.refused(v6) == nil }

// refused returns why an address gets no virtual one.
func (t *Table) refused(v6 netip.Addr) error {
	if special6(v6) {
		return ErrSpecial
	}
	if t.refuse == nil {
		return nil
	}
	refuse, err := t.refuse(v6)
	if err == nil && refuse {
		return ErrSpecial
	}
	return err
}

// Hold returns the IPv6 address of a virtual one, for a socket that will use it. The mapping is in
// use until Release was called as often as Hold.
func (t *Table) Hold(v4 netip.Addr) (netip.Addr, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, ok := t.slotOf(v4)
	if !ok {
		return netip.Addr{}, false
	}
	t.uses[i].holds++
	return t.slots[i].addr(), true
}

// Release undoes one Hold. It returns false if there is none.
func (t *Table) Release(v4 netip.Addr) bool {
	now := t.clock()
	t.mu.Lock()
	defer t.mu.Unlock()
	i, ok := t.slotOf(v4)
	if !ok || t.uses[i].holds == 0 {
		return false
	}
	if t.uses[i].holds--; t.uses[i].holds == 0 {
		t.slots[i].until = max(t.slots[i].until, int64(now))
		t.toIdle(i)
	}
	return true
}

// V6 returns the IPv6 address of a virtual one, from the table 46.
func (t *Table) V6(v4 netip.Addr) (netip.Addr, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	i, ok := t.slotOf(v4)
	if !ok {
		return netip.Addr{}, false
	}
	return t.slots[i].addr(), true
}

// V4 returns the virtual address of an IPv6 address, from the table 64.
func (t *Table) V4(v6 netip.Addr) (netip.Addr, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	i, ok := t.six[v6.As16()]
	if !ok || !v6.Is6() {
		return netip.Addr{}, false
	}
	return t.at(i), true
}

// While calls a function if an IPv6 address is behind a virtual one, which it then is until the
// function returns. The table's lock is held during the call.
func (t *Table) While(v4, v6 netip.Addr, do func()) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if i, ok := t.slotOf(v4); ok && t.slots[i].addr() == v6 {
		do()
	}
}

// Stats returns the table's counts.
func (t *Table) Stats() Stats {
	t.mu.RLock()
	defer t.mu.RUnlock()
	s := t.stats
	s.Mappings = len(t.six)
	return s
}

// Mappings returns the mappings, sorted by virtual address.
func (t *Table) Mappings() []Mapping {
	t.mu.RLock()
	defer t.mu.RUnlock()
	list := make([]Mapping, 0, len(t.six))
	for i := 1; i < len(t.uses); i++ {
		if s := &t.slots[i]; s.sum != 0 {
			list = append(list, Mapping{t.at(uint32(i)), s.addr(), t.uses[i].holds, time.Duration(s.until)})
		}
	}
	return list
}

// Flush removes the mappings that no socket holds, and returns their number. A program that keeps
// an address of an answer must ask again.
func (t *Table) Flush() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := len(t.six)
	t.idle = nil
	for i := 1; i < len(t.uses); i++ {
		t.uses[i].idle = false
		if t.slots[i].sum != 0 && t.uses[i].holds == 0 {
			t.drop(uint32(i))
			t.gaps = append(t.gaps, uint32(i))
		}
	}
	return before - len(t.six)
}
