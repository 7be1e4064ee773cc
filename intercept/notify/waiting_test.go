package notify

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Listeners that were closed while nobody waited any more do not add up.
func TestWaitingListenersAreBounded(t *testing.T) {
	p := waits(t)
	p.s.stop = make(chan struct{})
	defer close(p.s.stop)
	var err error
	if p.request.Number, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(p.request.Number)
	if err := errors.Join(unix.Listen(p.request.Number, 1), p.s.watch()); err != nil {
		t.Fatal(err)
	}
	w := &p.s.waiting
	for gone := uint64(1); gone <= 100; gone++ {
		c := &waitingCall{request: gate.Request{ID: p.request.ID + gone}, cookie: 1<<60 + gone}
		w.queues[c.cookie] = &queue{calls: []*waitingCall{c}}
	}
	if _, err := p.s.await(p); !errors.Is(err, errWaits) {
		t.Fatal(err)
	}
	p.s.lookForCallers()
	if len(w.queues) != 1 {
		t.Errorf("%d listeners are remembered, want the one that is waited for", len(w.queues))
	}
}

// If a fault of ours keeps signals from interrupting a call that waits in the gate, the call waits nonetheless.
func TestFaultEndsNoWatchedCall(t *testing.T) {
	p := waits(t)
	p.s.log = slog.New(slog.NewTextHandler(t.Output(), nil))
	var err error
	testkit.WithFiles(t, 0, func() { err = p.s.lookForSignals(p) })
	if !errors.Is(err, errWaits) {
		t.Errorf("%v, want %v", err, errWaits)
	}
}

// A listener has one entry of the epoll, whatever number its duplicates have.
func TestListenerHasOneEntry(t *testing.T) {
	s := &Supervisor{stop: make(chan struct{})}
	defer s.done.Wait()
	defer s.End()
	listener, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(listener)
	other, err := unix.FcntlInt(uintptr(listener), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(other)
	w := &s.waiting
	w.mu.Lock()
	defer w.mu.Unlock()
	err = errors.Join(unix.Listen(listener, 1), s.watch())
	for _, number := range []int{listener, other} {
		err = errors.Join(err, w.arm(&queue{}, 1, number))
	}
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", w.epoll))
	if n := bytes.Count(info, []byte("tfd:")); n != 2 || err != nil { // the other one's is the end
		t.Errorf("the epoll has %d entries, %v:\n%s", n, err, info)
	}
}
