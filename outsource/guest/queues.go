package guest

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// queues are those of accepted connections, by the handle of their listener. The kernel's queue is the
// listener's own; what is here was taken of it for a call that did not get it.
type queues struct {
	mu      sync.Mutex // guards what follows
	of      map[uint32]*queue
	looking bool

	isFree func(handle uint32) bool // a variable for tests
}

func newQueues() *queues { return &queues{of: map[uint32]*queue{}, isFree: isFree} }

// queue is held while a connection is on its way to a call: the call is made again if a signal interrupts it,
// and must find the connection.
type queue struct {
	sync.Mutex
	files []int
	users int  // guarded by queues.mu
	kept  bool // guarded by queues.mu: there were files when the last user let go
}

// keptLook is how often connections are looked at that no call has taken: they end with their listeners.
const keptLook = time.Second

// hold returns a listener's queue, locked.
func (q *queues) hold(listener uint32) *queue {
	q.mu.Lock()
	l := q.of[listener]
	if l == nil {
		l = new(queue)
		q.of[listener] = l
	}
	l.users++
	q.mu.Unlock()
	l.Lock()
	return l
}

// release lets go of a queue.
func (q *queues) release(listener uint32, l *queue) {
	kept := len(l.files) > 0
	q.mu.Lock()
	defer q.mu.Unlock()
	l.Unlock()
	l.kept = kept
	switch l.users--; {
	case !kept && l.users == 0:
		delete(q.of, listener)
	case kept && !q.looking:
		q.looking = true
		time.AfterFunc(keptLook, q.look)
	}
}

// has tells whether a connection is kept for a listener. A call that waits in the kernel's queue is not woken by
// it, and asks.
func (q *queues) has(listener uint32) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.of[listener]
	return l != nil && l.kept
}

// look closes the connections of listeners that have gone, as the kernel does with its queue.
func (q *queues) look() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for listener, l := range q.of {
		if l.users > 0 || !q.isFree(listener) {
			continue
		}
		for _, file := range l.files {
			unix.Close(file)
		}
		delete(q.of, listener)
	}
	if q.looking = len(q.of) > 0; q.looking {
		time.AfterFunc(keptLook, q.look)
	}
}

// next returns a connection that was kept, or else the next one of the kernel's queue. It does not wait: the
// error is EAGAIN if there is none.
func (l *queue) next(accept func() (int, error)) (int, error) {
	if len(l.files) == 0 {
		return accept()
	}
	file := l.files[0]
	l.files = l.files[1:]
	return file, nil
}
