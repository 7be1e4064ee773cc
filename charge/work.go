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

// Work is CPU time of a goroutine that is being spent for a container. The goroutine
// stays on its thread meanwhile, and what others do for it on theirs is not in it.
type Work struct {
	client    *Client
	container string
	thread    int
	outer     *Work // which goes on when this ends

	ended atomic.Bool

	// Only the thread itself knows these.
	since time.Duration // the thread's clock when the time after spent began
	spent time.Duration // before an inner work began, or between two
}

// Each thread's innermost work, in parts so that threads do not wait for each other.
var innermost [64]struct {
	sync.Mutex
	of map[int]*Work
}

// swap makes w, or none, the innermost work of a thread and returns what was.
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

// Begin begins to measure what the calling goroutine does, for a container: its name, or
// its cgroup's path. End must follow, in the same goroutine. Work that is begun in
// between is not this one's: no time is charged twice.
func (c *Client) Begin(container string) *Work {
	runtime.LockOSThread()
	w := &Work{client: c, container: container, thread: unix.Gettid()}
	now := threadClock()
	w.outer = swap(w.thread, w)
	// A goroutine that ends within its work takes its thread along, whose number may
	// be another's by now. That one's clock began again.
	if w.outer != nil && w.outer.since > now {
		w.outer = nil
	}
	if w.outer != nil {
		w.outer.spent += now - w.outer.since
	}
	w.since = now
	return w
}

// End ends the measurement and charges the time, without waiting for it to be sent.
// What was begun since and has not ended ends too. An error is ErrEnded, ErrThread, or
// says what is wrong with the container's name.
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
	if w.spent <= 0 { // the clock of a thread has steps
		return api.CheckChargeTarget(w.container)
	}
	if err := w.client.Add(w.container, min(w.spent, api.ChargeMax)); err != nil {
		return fmt.Errorf("end work: %w", err)
	}
	return nil
}

// threadClock is the CPU time of the calling thread.
func threadClock() time.Duration {
	var t unix.Timespec
	// It fails for clocks that a kernel does not have, which all have had since 2.6.
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano())
}
