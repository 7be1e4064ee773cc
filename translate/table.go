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
// in use while a socket is connected to its host, and until a deadline. Each DNS answer and each new
// peer moves the deadline. A mapping that is out of use stays, because programs keep addresses
// longer than they should. When the pool has no unused address left, the mappings that have been
// out of use for the longest time are reclaimed. Only then the table asks to which hosts sockets
// are connected.
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
	// Pool is the whole of the container's virtual addresses, of which Prefix is a part: others may
	// give out the rest. The zero value is DefaultPrefix.
	Pool netip.Prefix
	// Refuse tells which IPv6 addresses get no virtual one, in addition to special addresses: the
	// host's own. If it cannot tell, no new virtual address is given out. It may be nil. The table's
	// lock is held during the call.
	Refuse func(netip.Addr) (bool, error)
	// Connected returns the IPv6 addresses, and the virtual ones, to which the container's sockets
	// are connected, with the number of these sockets. If it cannot tell, no mapping is removed. It
	// may be nil: then no socket is connected. The table's lock is held during the call.
	Connected func() (map[netip.Addr]int, error)
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

// Table has the mappings of one container. Several goroutines may call its methods.
type Table struct {
	prefix    netip.Prefix
	whole     netip.Prefix // Options.Pool
	refuse    func(netip.Addr) (bool, error)
	connected func() (map[netip.Addr]int, error)
	mapped    func(v4, v6 netip.Addr)
	clock     func() time.Duration
	file      *mapped.File // nil: in memory

	mu    sync.RWMutex // guards the fields below
	slots []slot       // the whole pool
	used  uint32       // slots[1:used] have been used; at least 1
	six   map[[16]byte]uint32
	gaps  []uint32 // slots below used that are empty
	queue queue    // has each slot that is not empty, once
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
	V4, V6 netip.Addr
	Until  time.Duration // since boot; an answer or a peer has the mapping in use until then
}

// New makes a table, or opens the one of Options.File. It fails with ErrState unless a table with
// these options has written the file since the machine's boot. The file then stays unchanged, so
// that no later call gives out addresses that programs still use for other hosts.
func New(o Options) (*Table, error) {
	if o.Prefix == (netip.Prefix{}) {
		o.Prefix = DefaultPrefix
	}
	if o.Pool == (netip.Prefix{}) {
		o.Pool = DefaultPrefix
	}
	if a := o.Prefix.Addr(); !a.Is4() || o.Prefix.Bits() < 12 || o.Prefix.Bits() > 30 || o.Prefix != o.Prefix.Masked() {
		return nil, fmt.Errorf("virtual addresses %s: want an IPv4 prefix of 12 to 30 bits, the others zero", o.Prefix)
	}
	t := &Table{prefix: o.Prefix, whole: o.Pool, refuse: o.Refuse, connected: o.Connected, mapped: o.Mapped, clock: o.Clock, used: 1, six: map[[16]byte]uint32{}}
	if t.connected == nil {
		t.connected = func() (map[netip.Addr]int, error) { return nil, nil }
	}
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
// Options.Refuse and Options.Connected.
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
	t.enqueue(i)
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
	for i := uint32(1); i < t.used; i++ {
		if s := &t.slots[i]; s.sum != 0 {
			list = append(list, Mapping{t.at(i), s.addr(), time.Duration(s.until)})
		}
	}
	return list
}

// Flush removes the mappings that are not in use, and returns their number. A program that keeps an
// address of an old answer must ask again. Flush fails with the errors of Options.Connected, and
// then removes nothing.
func (t *Table) Flush() (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	connected, err := t.connected()
	if err != nil {
		return 0, err
	}
	before, now := len(t.six), int64(t.clock())
	t.queue = nil
	for i := uint32(1); i < t.used; i++ {
		switch {
		case t.slots[i].sum == 0:
		case t.slots[i].until > now, t.isConnected(connected, i):
			t.enqueue(i)
		default:
			t.drop(i)
		}
	}
	return before - len(t.six), nil
}
