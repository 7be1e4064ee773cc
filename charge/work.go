package charge

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/api"
)

// Work measures the CPU time that one goroutine spends for a container. The goroutine stays on its
// thread meanwhile. The measurement does not contain the time of other goroutines, on any thread.
type Work struct {
	client    *Client
	container string
	thread    int
	outer     *Work // continues when this Work ends

	ended atomic.Bool

	// Only the thread itself reads and writes these fields.
	since time.Duration // the thread's CPU clock when the current stretch began
	spent time.Duration // the sum of the stretches that an inner Work ended
}

// innermost has the innermost Work of each thread. It has many parts, so that threads rarely wait
// for the same lock.
var innermost [64]struct {
	sync.Mutex
	of map[int]*Work
}

// swap makes w the innermost Work of a thread and returns the one before. A nil w removes the
// entry.
func swap(thread int, w *Work) *Work {
	part := &innermost[thread%len(innermost)]
	part.Lock()
	defer part.Unlock()
	before := part.of[thread]
	switch {
	case w == nil:
		delete(part.of, thread)
	case part.of == nil:
		part.of = map[int]*Work{thread: w}
	default:
		part.of[thread] = w
	}
	return before
}

// Begin starts to measure the CPU time of the calling goroutine for a container. The argument is
// the container's name or its cgroup's path. The same goroutine must call End. A Work that begins
// before that End is measured separately: no time is charged twice.
func (c *Client) Begin(container string) *Work {
	runtime.LockOSThread()
	w := &Work{client: c, container: container, thread: unix.Gettid()}
	now := threadClock()
	w.outer = swap(w.thread, w)
	// A goroutine that ends without End ends its thread too. The kernel may have given the thread's
	// id to a new thread. The CPU clock of the new thread started at 0.
	if w.outer != nil && w.outer.since > now {
		w.outer = nil
	}
	if w.outer != nil {
		w.outer.spent += now - w.outer.since
	}
	w.since = now
	return w
}

// End stops the measurement and charges the time. It does not wait until the charge is sent. It
// also ends every inner Work that has not ended. The error is ErrEnded, ErrThread, or names the
// fault of the container's name.
func (w *Work) End() error {
	now := threadClock()
	if w.ended.Load() {
		return ErrEnded
	}
	if unix.Gettid() != w.thread {
		return ErrThread
	}
	inner := swap(w.thread, w.outer)
	var errs []error
	for inner != w.outer && inner != nil {
		inner.spent += now - inner.since
		errs = append(errs, inner.close())
		inner = inner.outer
		if inner != nil {
			inner.since = now
		}
	}
	return errors.Join(errs...)
}

func (w *Work) close() error {
	w.ended.Store(true)
	runtime.UnlockOSThread()
	if w.spent <= 0 { // the CPU clock of a thread advances in steps
		return api.CheckChargeTarget(w.container)
	}
	if err := w.client.Add(w.container, min(w.spent, api.ChargeMax)); err != nil {
		return fmt.Errorf("end work: %w", err)
	}
	return nil
}

// threadClock returns the CPU time of the calling thread.
func threadClock() time.Duration {
	var t unix.Timespec
	// The call fails only for clocks that the kernel does not have. Every kernel since 2.6 has this
	// clock.
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano())
}
