package load

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// barrierSize is the size of the shared words: arrived, generation.
const barrierSize = 8

// look is the interval between two checks of the context.
const look = 50 * time.Millisecond

// Operations of futex(2), without the private flag: other processes share the words.
const (
	futexWait = 0
	futexWake = 1
)

// Barrier is a file at which programs of several containers wait for each other (At). It can be
// used again after each Open. Only one goroutine may call its methods. The protocol is in
// density/load/c/barrier.c.
type Barrier struct {
	shared              []byte
	arrived, generation *atomic.Uint32
}

// NewBarrier creates the barrier's file, which must not exist. Programs that wait must be able to
// write to it.
func NewBarrier(path string) (*Barrier, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("make barrier: %w", err)
	}
	defer f.Close()
	if err := f.Truncate(barrierSize); err != nil {
		return nil, fmt.Errorf("make barrier: %w", err)
	}
	shared, err := unix.Mmap(int(f.Fd()), 0, barrierSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map barrier: %w", err)
	}
	word := func(i int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&shared[4*i])) }
	return &Barrier{shared: shared, arrived: word(0), generation: word(1)}, nil
}

// Await waits until n programs have arrived.
func (b *Barrier) Await(ctx context.Context, n int) error {
	for {
		arrived := b.arrived.Load()
		if int(arrived) >= n {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%d of %d programs have come to the barrier: %w", arrived, n, context.Cause(ctx))
		}
		timeout := unix.NsecToTimespec(int64(look))
		if err := futex(b.arrived, futexWait, arrived, &timeout); err != nil &&
			!errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ETIMEDOUT) {
			return fmt.Errorf("wait for programs at the barrier: %w", err)
		}
	}
}

// Open releases all programs that have arrived.
func (b *Barrier) Open() error {
	b.arrived.Store(0)
	b.generation.Add(1)
	if err := futex(b.generation, futexWake, 1<<30, nil); err != nil {
		return fmt.Errorf("open the barrier: %w", err)
	}
	return nil
}

// Close releases all programs that have arrived, and unmaps the file. It does not remove it.
func (b *Barrier) Close() error {
	return errors.Join(b.Open(), unix.Munmap(b.shared))
}

func futex(word *atomic.Uint32, operation int, value uint32, timeout *unix.Timespec) error {
	_, _, errno := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), uintptr(operation), uintptr(value),
		uintptr(unsafe.Pointer(timeout)), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
