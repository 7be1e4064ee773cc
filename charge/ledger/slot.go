package ledger

import (
	"fmt"
	"math"
	"sync/atomic"
	"unsafe"

	"github.com/tsugiki/tsugiki/internal/mapped"
)

// slot is the layout of one container in the file.
type slot struct {
	valid               atomic.Uint32 // stored last; 0: the slot is free
	_                   uint32
	id                  uint64
	since               int64 // nanoseconds since 1970
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

// used is the number of slots that have ever been used.
func used(data []byte) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&data[mapped.Spare])) }

func slotOf(data []byte, i uint32) *slot {
	return (*slot)(unsafe.Pointer(&data[mapped.HeaderSize+int(i)*slotSize]))
}

func (s *slot) setName(name string) error {
	if name == "" {
		return fmt.Errorf("a container has no name")
	}
	return mapped.SetText(s.name[:], name)
}

// check returns an error that names the first fault of a file's data.
func check(data []byte) error {
	n := used(data).Load()
	if n > Capacity {
		return fmt.Errorf("the file claims to have %d containers", n)
	}
	names := map[string]bool{}
	for i := range n {
		s := slotOf(data, i)
		if s.valid.Load() == 0 {
			continue
		}
		if err := s.check(); err != nil {
			return fmt.Errorf("slot %d: %w", i, err)
		}
		name, _ := mapped.Text(s.name[:])
		if names[name] {
			return fmt.Errorf("slot %d: %q is there twice", i, name)
		}
		names[name] = true
	}
	return nil
}

func (s *slot) check() error {
	if name, whole := mapped.Text(s.name[:]); !whole || name == "" || s.valid.Load() != 1 {
		return fmt.Errorf("the name is %q", s.name)
	}
	if s.since <= 0 {
		return fmt.Errorf("the start time is %d", s.since)
	}
	// No sum gets near this value in the life of a machine.
	const most = math.MaxInt64 / 16
	for _, v := range []int64{s.debt.Load(), s.own.Load(), s.forgiven.Load()} {
		if v < 0 || v > most {
			return fmt.Errorf("a sum is %d", v)
		}
	}
	for i := range s.sources {
		src := &s.sources[i]
		if src.valid.Load() == 0 && i < Sources {
			continue
		}
		name, whole := mapped.Text(src.name[:])
		if v := src.time.Load(); !whole || name == "" || src.valid.Load() != 1 || v < -most || v > most || (name == Other) != (i == Sources) {
			return fmt.Errorf("source %d is %q with %d", i, src.name, v)
		}
	}
	return nil
}
