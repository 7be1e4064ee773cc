package translate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// clock is a time since boot that a test moves.
type clock struct{ now atomic.Int64 }

func (c *clock) read() time.Duration  { return time.Duration(c.now.Load()) }
func (c *clock) pass(d time.Duration) { c.now.Add(int64(d)) }

func newTable(t testing.TB, o Options) *Table {
	t.Helper()
	table, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := table.Close(); err != nil {
			t.Error(err)
		}
	})
	return table
}

// small returns a table with n virtual addresses (2, 6, 14, …) and its clock.
func small(t testing.TB, bits int) (*Table, *clock) {
	table, c, _ := connecting(t, bits)
	return table, c
}

// sockets are those of a container, by the address to which they are connected.
type sockets struct {
	mu  sync.Mutex // guards what follows
	to  map[netip.Addr]int
	err error
}

func (s *sockets) read() (map[netip.Addr]int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.to), s.err
}

// connect adds n sockets that are connected to an address.
func (s *sockets) connect(to netip.Addr, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.to[to] += n
}

// connecting is small, with the sockets of a container.
func connecting(t testing.TB, bits int) (*Table, *clock, *sockets) {
	c, s := &clock{}, &sockets{to: map[netip.Addr]int{}}
	return newTable(t, Options{Prefix: netip.PrefixFrom(addr("198.18.0.0"), bits), Clock: c.read, Connected: s.read}), c, s
}

// remote returns the address of the n-th remote host.
func remote(n uint32) netip.Addr {
	b := addr("2001:db8::").As16()
	binary.BigEndian.PutUint32(b[12:], n)
	return netip.AddrFrom16(b)
}

func mustMap(t testing.TB, table *Table, v6 netip.Addr, ttl time.Duration) netip.Addr {
	t.Helper()
	v4, err := table.Map(v6, ttl)
	if err != nil {
		t.Fatal(err)
	}
	return v4
}

// inverse returns an error if a table's halves are not inverse of each other.
func inverse(table *Table) error {
	table.mu.RLock()
	defer table.mu.RUnlock()
	n := 0
	for i := range table.slots {
		s := &table.slots[i]
		if s.sum == 0 {
			continue
		}
		n++
		if at, ok := table.six[s.v6]; !ok || int(at) != i {
			return fmt.Errorf("46 has %s for %s, and 64 has slot %d (%v)", s.addr(), table.at(uint32(i)), at, ok)
		}
	}
	if n != len(table.six) {
		return fmt.Errorf("46 has %d mappings, and 64 has %d", n, len(table.six))
	}
	return nil
}

func TestOptions(t *testing.T) {
	for _, p := range []string{"198.18.0.0/31", "10.0.0.0/8", "198.18.0.1/24", "2001:db8::/64"} {
		if _, err := New(Options{Prefix: netip.MustParsePrefix(p)}); err == nil {
			t.Errorf("%s is taken for a pool", p)
		}
	}
	if p := newTable(t, Options{}).Prefix(); p != DefaultPrefix {
		t.Errorf("the pool is %s", p)
	}
}

func TestSpecialAddressesGetNone(t *testing.T) {
	own := addr("2001:db8::aaaa")
	table := newTable(t, Options{Refuse: func(a netip.Addr) (bool, error) { return a == own, nil }})
	list := []netip.Addr{{}, own, addr("192.0.2.1"), addr("fe80::1%eth0"), addr("2001:db8::1").WithZone("1")}
	for _, a := range []string{
		"::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:192.0.2.1", "::ffff:0:192.0.2.1", "fe80::1", "febf::1", "fec0::1",
		"ff02::1", "ff0e::1", "100::1", "64:ff9b::127.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b::", "64:ff9b::169.254.169.254",
	} {
		list = append(list, addr(a))
	}
	for _, a := range list {
		if v4, err := table.Map(a, 0); !errors.Is(err, ErrSpecial) || table.Usable(a) {
			t.Errorf("%s has %s (%v)", a, v4, err)
		}
	}
	if s := table.Stats(); s.Refused != uint64(len(list)) || s.Mappings != 0 {
		t.Errorf("stats %+v", s)
	}
	for _, a := range []string{"2001:db8::1", "fd00::1", "64:ff9b::198.41.0.4", "2606:4700::1"} {
		mustMap(t, table, addr(a), 0)
	}
}

func TestMappingStays(t *testing.T) {
	table, c := small(t, 24)
	v4 := mustMap(t, table, remote(1), time.Minute)
	if again := mustMap(t, table, remote(1), 0); again != v4 {
		t.Errorf("%s has %s and %s", remote(1), v4, again)
	}
	if other := mustMap(t, table, remote(2), 0); other == v4 {
		t.Errorf("two addresses have %s", v4)
	}
	c.pass(24 * time.Hour) // not in use any more, but nobody needs it
	if six, ok := table.V6(v4); !ok || six != remote(1) {
		t.Errorf("46: %s (%v)", six, ok)
	}
	if four, ok := table.V4(remote(1)); !ok || four != v4 {
		t.Errorf("64: %s (%v)", four, ok)
	}
	for _, a := range []netip.Addr{addr("198.18.0.0"), addr("198.18.0.3"), addr("198.18.0.255"), addr("198.19.0.1"), addr("::1"), {}} {
		if six, ok := table.V6(a); ok {
			t.Errorf("%s is %s", a, six)
		}
		if _, ok := table.V4(a); ok {
			t.Errorf("%s has a virtual address", a)
		}
	}
}

func TestReclaimedInOrder(t *testing.T) {
	table, c, s := connecting(t, 29) // six addresses
	var v4 [7]netip.Addr
	for n := range uint32(6) {
		v4[n+1] = mustMap(t, table, remote(n+1), 0)
		c.pass(time.Second)
	}
	s.connect(remote(1), 1)                   // of TCP
	mustMap(t, table, remote(2), time.Minute) // used again
	if _, err := table.Map(remote(7), 0); !errors.Is(err, ErrExhausted) {
		t.Fatalf("seventh of six: %v", err)
	}
	c.pass(2*time.Minute + time.Second)
	s.connect(v4[3], 1) // of UDP
	for n, want := range []netip.Addr{v4[4], v4[5], v4[6], v4[2]} {
		if got := mustMap(t, table, remote(10+uint32(n)), time.Hour); got != want {
			t.Errorf("reclaimed %s, want %s", got, want)
		}
	}
	if _, err := table.Map(remote(20), 0); !errors.Is(err, ErrExhausted) {
		t.Errorf("all are in use: %v", err)
	}
	s.connect(v4[3], -1)
	c.pass(Grace + time.Second) // a socket used it last when the table looked
	if got := mustMap(t, table, remote(21), 0); got != v4[3] {
		t.Errorf("reclaimed %s, want %s", got, v4[3])
	}
	if six, ok := table.V6(v4[1]); !ok || six != remote(1) {
		t.Errorf("a socket's mapping was reclaimed: %s (%v)", six, ok)
	}
	s.connect(remote(1), -1)
	c.pass(Grace + time.Second)
	s.err = errors.New("no sockets are shown")
	if got, err := table.Map(remote(22), 0); !errors.Is(err, s.err) {
		t.Errorf("a mapping that a socket may use was reclaimed: %s, %v", got, err)
	}
	s.err = nil
	mustMap(t, table, remote(22), 0)
	mustMap(t, table, remote(23), 0)
	if left, ok := table.V4(remote(1)); ok {
		t.Errorf("nobody uses %s, and it was not reclaimed", left)
	}
	if s := table.Stats(); s.Exhausted != 3 || s.Reclaimed != 7 || s.Created != 13 || s.Mappings != 6 {
		t.Errorf("stats %+v", s)
	}
	if err := inverse(table); err != nil {
		t.Error(err)
	}
}

// While a function is called for a mapping, it stays.
func TestWhile(t *testing.T) {
	table, _ := small(t, 30)
	v4, called := mustMap(t, table, remote(1), 0), 0
	table.While(v4, remote(1), func() {
		called++
		if table.mu.TryLock() {
			t.Error("the mapping can change")
			table.mu.Unlock()
		}
	})
	for _, m := range [][2]netip.Addr{{v4, remote(2)}, {v4.Next(), remote(1)}, {addr("192.0.2.1"), remote(1)}} {
		table.While(m[0], m[1], func() { t.Errorf("%s is taken for %s", m[0], m[1]) })
	}
	if called != 1 {
		t.Errorf("called %d times", called)
	}
}

func TestFlush(t *testing.T) {
	table, c, s := connecting(t, 30) // two addresses
	used := mustMap(t, table, remote(1), time.Hour)
	s.connect(remote(1), 2)
	mustMap(t, table, remote(2), time.Hour)
	if n, err := table.Flush(); n != 0 || err != nil || table.InUse() != 2 {
		t.Errorf("%d that answers have in use were flushed, %v; in use are %d", n, err, table.InUse())
	}
	c.pass(time.Hour + Grace + time.Second)
	if n := table.InUse(); n != 0 || table.Size() != 2 {
		t.Errorf("of %d, answers have %d in use", table.Size(), n)
	}
	s.err = errors.New("no sockets are shown")
	if n, err := table.Flush(); n != 0 || !errors.Is(err, s.err) {
		t.Errorf("%d were flushed, %v", n, err)
	}
	s.err = nil
	if n, err := table.Flush(); n != 1 || err != nil {
		t.Errorf("%d were flushed, %v, want 1", n, err)
	}
	if l := table.Mappings(); len(l) != 1 || l[0].V4 != used || l[0].V6 != remote(1) {
		t.Errorf("left: %v", l)
	}
	mustMap(t, table, remote(3), time.Hour)
	if err := inverse(table); err != nil {
		t.Error(err)
	}
	if _, err := table.Map(remote(4), 0); !errors.Is(err, ErrExhausted) {
		t.Error(err)
	}
	s.connect(remote(1), -2)
	c.pass(time.Hour + Grace + time.Second)
	if got := mustMap(t, table, remote(4), 0); got != used {
		t.Errorf("got %s, want %s, which has been out of use for longer", got, used)
	}
}

// One container's full table does not affect other tables.
func TestExhaustionIsOneContainers(t *testing.T) {
	hostile, _ := small(t, 28)
	other, _ := small(t, 28)
	v4 := mustMap(t, other, remote(1), 0)
	for n := range uint32(1000) {
		_, err := hostile.Map(remote(n), time.Hour)
		if (err != nil) != (n >= 14) {
			t.Fatalf("address %d: %v", n, err)
		}
	}
	if six, ok := other.V6(v4); !ok || six != remote(1) {
		t.Errorf("the other table has %s (%v)", six, ok)
	}
	mustMap(t, other, remote(2), 0)
}

// Goroutines map, connect, close and look up at random in pools that are too small. An address to
// which a socket is connected stays its host's, the halves of the table are inverse of each other, and no
// address of an answer is given to another host before its time.
func TestInverseUnderConcurrency(t *testing.T) {
	table, c, s := connecting(t, 25)
	var all sync.WaitGroup
	for worker := range uint64(8) {
		all.Add(1)
		go func() {
			defer all.Done()
			r := rand.New(rand.NewPCG(worker, 46))
			held := map[netip.Addr]netip.Addr{}
			for range 20_000 {
				v6 := remote(r.Uint32N(400))
				switch r.IntN(6) {
				case 0:
					c.pass(time.Second)
				case 1: // as a resolver and then connect(2) do
					v4, err := table.Map(v6, time.Hour)
					if err != nil {
						continue
					}
					if _, mine := held[v4]; mine {
						continue
					}
					s.connect(v4, 1)
					if got, ok := table.V6(v4); ok && got == v6 {
						held[v4] = v6
					} else { // its time has passed meanwhile
						s.connect(v4, -1)
					}
				case 2:
					for v4, v6 := range held {
						if got, ok := table.V6(v4); !ok || got != v6 {
							t.Errorf("%s of a socket is %s (%v), was %s", v4, got, ok, v6)
						}
						if got, ok := table.V4(v6); !ok || got != v4 {
							t.Errorf("%s of a socket has %s (%v), had %s", v6, got, ok, v4)
						}
						s.connect(v4, -1)
						delete(held, v4)
						break
					}
				case 3:
					if v4, ok := table.V4(v6); ok && !table.Prefix().Contains(v4) {
						t.Errorf("%s has %s", v6, v4)
					}
				default:
					_, _ = table.Map(v6, 0) // may be exhausted
				}
				if len(held) > 10 {
					for v4 := range held {
						s.connect(v4, -1)
					}
					clear(held)
				}
			}
			for v4 := range held {
				s.connect(v4, -1)
			}
		}()
	}
	checked := make(chan struct{})
	go func() {
		defer close(checked)
		for range 200 {
			if err := inverse(table); err != nil {
				t.Error(err)
			}
		}
	}()
	all.Wait()
	<-checked
	if err := inverse(table); err != nil {
		t.Error(err)
	}
}
