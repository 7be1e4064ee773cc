package shared

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/charge/slots"
)

// The layout of the words in the map of what each CPU does now (bpf/shared.bpf.c).
const (
	slotBits  = uint64(bpf.SharedRunningWordRUNNING_SLOT_BITS)
	watchBits = uint64(bpf.SharedRunningWordRUNNING_WATCH_BITS)
	timeBits  = uint64(bpf.SharedRunningWordRUNNING_TIME_BITS)
	unitBits  = uint64(bpf.SharedRunningWordRUNNING_UNIT_BITS)
	stride    = int(bpf.SharedRunningWordRUNNING_STRIDE)
)

// openTime returns, by slot, the running time of threads since their last event. It counts the
// threads of the process with the given watch number.
func openTime(running slots.Sums, watch uint32, now time.Duration) map[uint32]time.Duration {
	open := make(map[uint32]time.Duration)
	for i := 0; i < len(running); i += stride {
		word := atomic.LoadUint64(&running[i])
		slot, of, since := word&(1<<slotBits-1), word>>slotBits&(1<<watchBits-1), word>>(slotBits+watchBits)
		if word == 0 || of != uint64(watch)&(1<<watchBits-1) {
			continue
		}
		units := (uint64(now)>>unitBits - since) & (1<<timeBits - 1)
		if units >= 1<<(timeBits-1) { // the thread began to run after now was read
			continue
		}
		open[uint32(slot)] += time.Duration(units << unitBits)
	}
	return open
}

// monotonic returns the time on the clock of the kernel programs.
func monotonic() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // every kernel has this clock
	return time.Duration(t.Nano())
}
