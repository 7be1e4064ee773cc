package notify

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/graft"
)

// Where a filter's calls wait interruptibly (before Linux 5.19, and in containers of OCI runtimes
// that do not ask for WAIT_KILLABLE_RECV), a signal can interrupt a call while the supervisor
// carries it out. If the handler lets calls be restarted, the program makes the same call next,
// with a notification of its own. The second call gets the result of the first.

// The second may come while the first is still being carried out. So calls of one
// thread are answered one after another.

// interruptionsMax bounds the calls that are remembered: a program that is not
// restarted makes another call, or ends.
const interruptionsMax = 256

// threads keep the calls of each thread apart.
type threads struct {
	mu   sync.Mutex // guards what follows
	free sync.Cond  // a thread's call has been answered
	busy map[int]struct{}
	// interrupted are calls that were carried out, and not answered.
	interrupted map[int]interruption
}

type interruption struct {
	call   gate.Call
	number int
	id     uint64
}

func newThreads() *threads {
	t := &threads{busy: map[int]struct{}{}, interrupted: map[int]interruption{}}
	t.free.L = &t.mu
	return t
}

// carriedOut tells whether a call has changed its socket, so that the kernel would say something else of the same call
// once more: that the socket is bound, or connects.
func (p *program) carriedOut(answer graft.Answer) bool {
	switch p.request.Call {
	case gate.Bind, gate.Connect, gate.Send:
		return p.replaced || p.call != p.request.ID || answer.Action == graft.Succeed || answer == fail(unix.EINPROGRESS)
	}
	return false
}

// begin waits until the thread's last call has been answered. If that was the same call, carried
// out for another notification, begin returns the id of that notification.
func (t *threads) begin(r gate.Request) (id uint64, found bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		if _, busy := t.busy[r.Thread]; !busy {
			break
		}
		t.free.Wait()
	}
	t.busy[r.Thread] = struct{}{}
	was, found := t.interrupted[r.Thread]
	delete(t.interrupted, r.Thread)
	return was.id, found && was.call == r.Call && was.number == r.Number
}

// end ends what begin began.
func (t *threads) end(r gate.Request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.busy, r.Thread)
	t.free.Broadcast()
}

// interrupt remembers a call that was carried out in answer to a notification.
func (t *threads) interrupt(r gate.Request, id uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.interrupted) >= interruptionsMax {
		clear(t.interrupted)
	}
	t.interrupted[r.Thread] = interruption{r.Call, r.Number, id}
}
