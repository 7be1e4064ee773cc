package slots

import (
	"errors"
	"maps"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"
)

func TestTable(t *testing.T) {
	table := NewTable(1, 4)
	hold := func(owner, want uint32) {
		t.Helper()
		if got, err := table.Hold(owner); err != nil || got != want {
			t.Errorf("owner %d has slot %d (%v), want %d", owner, got, err, want)
		}
	}
	hold(10, 1)
	hold(20, 2)
	hold(10, 1)
	hold(30, 3)
	if _, err := table.Hold(40); !errors.Is(err, ErrFull) {
		t.Errorf("a fourth owner of three slots: %v", err)
	}
	if _, err := table.Hold(0); !errors.Is(err, ErrOwner) {
		t.Errorf("nobody: %v", err)
	}
	table.Release(10)
	table.Release(20)
	table.Release(99)
	table.Sweep()
	if got := maps.Collect(table.All()); !maps.Equal(got, map[uint32]uint32{10: 1, 30: 3}) {
		t.Errorf("who still owns something: %v", got)
	}
	hold(40, 2)
	table.Release(40)
	hold(40, 2) // not swept: its own still
}

// A slot that was just freed is the last to be used again.
func TestFreedLast(t *testing.T) {
	table := NewTable(0, 3)
	for owner := range uint32(6) {
		if got, err := table.Hold(owner + 1); err != nil || got != owner%3 {
			t.Errorf("owner %d has slot %d (%v)", owner+1, got, err)
		}
		table.Release(owner + 1)
		table.Sweep()
	}
}

func TestMap(t *testing.T) {
	const mmapable = 1 << 10 // BPF_F_MMAPABLE
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 24, MaxEntries: 1000, Flags: mmapable})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	sums, err := Map(m)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Put(uint32(999), [3]uint64{7, 8, 9}); err != nil {
		t.Fatal(err)
	}
	if got := atomic.LoadUint64(&sums[999*3+2]); got != 9 {
		t.Errorf("the last sum is %d, want 9", got)
	}
	if err := sums.Unmap(); err != nil {
		t.Error(err)
	}
}
