package notify

import (
	"sync"
	"sync/atomic"

	"github.com/tsugiki/tsugiki/internal/gate"
)

// Where a filter's calls wait interruptibly (before Linux 5.19, and in containers of
// OCI runtimes that do not ask for WAIT_KILLABLE_RECV), a signal can take a program
// from under us while we do what it asked for. If its handler lets calls be restarted,
// the program makes the same call next, as a notification of its own; what was done for
// the first is what it gets.

// interruptionsMax bounds the calls that are remembered: a program that is not
// restarted makes another call, or ends.
const interruptionsMax = 256

// interruptions are those calls, by thread.
type interruptions struct {
	count atomic.Int32 // of calls; most of the time none
	mu    sync.Mutex   // guards calls
	calls map[int]interruption
}

type interruption struct {
	call   gate.Call
	number int
	id     uint64
}

// note remembers a call that was carried out in answer to a notification.
func (i *interruptions) note(a gate.Ask, id uint64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.calls == nil || len(i.calls) >= interruptionsMax {
		i.calls = map[int]interruption{}
	}
	i.calls[a.Thread] = interruption{a.Call, a.Number, id}
	i.count.Store(int32(len(i.calls)))
}

// take returns the notification in answer to which a call was carried out that its
// thread makes again, and forgets what the thread made before.
func (i *interruptions) take(a gate.Ask) (id uint64, found bool) {
	if i.count.Load() == 0 {
		return 0, false
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	was, found := i.calls[a.Thread]
	delete(i.calls, a.Thread)
	i.count.Store(int32(len(i.calls)))
	return was.id, found && was.call == a.Call && was.number == a.Number
}
