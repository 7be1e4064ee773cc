package notify

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/graft"
)

// A thread takes its own signals, and the first thread those of the process, unless it blocks them.
func TestHasSignal(t *testing.T) {
	for _, tt := range []struct {
		tgid, pid            int
		own, shared, blocked uint64
		want                 bool
	}{
		{7, 7, 0, 0, 0, false},
		{7, 7, 1 << 16, 0, 0, true},
		{7, 7, 0, 1 << 16, 0, true},
		{7, 7, 1 << 16, 1 << 16, 1 << 16, false},
		{7, 7, 1 << 16, 1 << 14, 1 << 16, true},
		{7, 8, 1 << 16, 0, 0, true},
		{7, 8, 0, 1 << 16, 0, false},
	} {
		status := fmt.Sprintf("Name:\ta\tb\nTgid:\t%d\nPid:\t%d\nSigQ:\t1/2\nSigPnd:\t%016x\nShdPnd:\t%016x\nSigBlk:\t%016x\nSigIgn:\tffffffffffffffff\n",
			tt.tgid, tt.pid, tt.own, tt.shared, tt.blocked)
		if got := hasSignal([]byte(status)); got != tt.want {
			t.Errorf("%v of\n%s", got, status)
		}
	}
}

// A call that waits in the gate is not interrupted any more once the supervisor answers it: the program
// may have its connection by then.
func TestAnsweredCallsAreNotInterrupted(t *testing.T) {
	p := waits(t)
	p.s.engine = &graft.Engine{}
	var err error
	if p.request.Number, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(p.request.Number)
	for _, p.request.Name = range []gate.Name{gate.AcceptedName, gate.AcceptName} {
		other := &waitingCall{request: gate.Request{ID: p.request.ID + 1}}
		w := &p.s.waiting
		w.queues = map[uint64]*queue{watched: {calls: []*waitingCall{other, {request: p.request}}}}
		if _, err := p.s.name(p); err != nil {
			t.Fatal(err)
		}
		if left := w.all(); len(left) != 1 || left[0] != other {
			t.Errorf("name %d: %v would be interrupted, want the other call alone", p.request.Name, left)
		}
	}
}
