package notify

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// A signal at any time of accept(2) takes no connection from the program, nor leaves it a descriptor
// that it does not know of.
func TestSignalTakesNoConnection(t *testing.T) {
	w := newAcceptWorld(t, "interrupted", 0)
	var asking sync.WaitGroup
	for i, from := range []*netns.NS{w.host, w.own, w.host, w.own} {
		asking.Go(func() {
			for k := range 400 {
				if err := w.asks(from, "w"); err != nil {
					t.Errorf("client %d.%d: %v", i, k, err)
					return
				}
			}
		})
	}
	asking.Wait()
	w.must(w.asks(w.host, "e"))
	if got := w.hears(); got != "0 are left" {
		t.Errorf("of the program's sockets %s", got)
	}
}

// A signal at any time of socket(AF_GRAFT) leaves the program no descriptor that it does not know of.
func TestSignalLeavesNoSocket(t *testing.T) {
	w := newAcceptWorld(t, "sockets", 0)
	if got := w.hears(); got != "0 are left" {
		t.Errorf("of the program's sockets %s", got)
	}
}

// A program that has no descriptor left gets the connection by its next call.
func TestWantOfDescriptorsTakesNoConnection(t *testing.T) {
	w := newAcceptWorld(t, "full", 0)
	asked := make(chan error, 1)
	go func() { asked <- w.asks(w.host, "e") }()
	if got, want := w.hears(), fmt.Sprint(-1, unix.EMFILE); got != want {
		t.Errorf("accept says %q, want %q", got, want)
	}
	w.counts(1, 1)
	w.must(<-asked)
	w.counts(2, 1)
}

// A fault of ours takes no connection from the program, and does not give it a marker either.
func TestFaultTakesNoConnection(t *testing.T) {
	for _, fault := range []unix.Errno{unix.EIO, unix.EMFILE} {
		w := newAcceptWorld(t, "again", 0)
		err := fmt.Errorf("open memory: %w", fault)
		w.fault.Store(&err)
		asked := make(chan error, 1)
		go func() { asked <- w.asks(w.own, "e") }()
		if got, want := w.hears(), fmt.Sprint(-1, unix.ECONNABORTED); got != want {
			t.Errorf("accept says %q, want %q", got, want)
		}
		w.must(<-asked)
	}
}

// If a fault of ours keeps a call from waiting, it ends: a call that the kernel goes on with could get a marker.
func TestFaultKeepsNoCallInKernel(t *testing.T) {
	w := newAcceptWorld(t, "again", 0)
	w.waiters(1)
	null, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	w.must(err)
	defer unix.Close(null)
	set := func(file int) (before int) {
		w.s.waiting.mu.Lock()
		defer w.s.waiting.mu.Unlock()
		before, w.s.waiting.epoll = w.s.waiting.epoll, file
		return before
	}
	epoll := set(null) // which is none
	client := make(chan error, 1)
	go func() { client <- w.asks(w.own, "w") }()
	if got := w.hears(); !strings.HasSuffix(got, "<nil>") {
		t.Errorf("accept says %q, want a connection", got)
	}
	if got, want := w.hears(), unix.ECONNABORTED.Error(); got != want {
		t.Errorf("accept says %q, want %q", got, want)
	}
	set(epoll)
	if err := <-client; err == nil {
		t.Error("the program has answered a connection that it did not read")
	}
}

// A fault of ours while a listener is asked does not leave the kernel a call that has waited here. A listener of which
// nothing is known stays the kernel's.
func TestFaultBeforeListenerIsKnown(t *testing.T) {
	w := newAcceptWorld(t, "again", 0)
	w.waiters(1)
	c := w.s.waiting.all()[0]
	for _, tt := range []struct {
		waited *waitingCall
		answer graft.Answer
		err    error
	}{
		{waited: c, answer: fail(unix.ECONNABORTED)},
		{err: unix.EMFILE},
	} {
		var answer graft.Answer
		var err error
		testkit.WithFiles(t, 0, func() { answer, err = w.s.accept(&program{s: w.s, request: c.request, waited: tt.waited}) })
		if answer != tt.answer || !errors.Is(err, tt.err) {
			t.Errorf("accept says %+v, %v; want %+v, %v", answer, err, tt.answer, tt.err)
		}
	}
}

// A call that would wait when the supervisor ends is not answered: the next supervisor is asked.
func TestWaitsForNextSupervisor(t *testing.T) {
	w := newAcceptWorld(t, "again", 0)
	w.waiters(1)
	c := w.s.waiting.all()[0]
	w.s.waiting.mu.Lock()
	epoll := w.s.waiting.epoll
	w.s.waiting.epoll = -1
	w.s.waiting.mu.Unlock()
	if answer, err := w.s.accept(&program{s: w.s, request: c.request}); !errors.Is(err, errWaits) {
		t.Errorf("the call is answered by %+v, %v", answer, err)
	}
	w.s.waiting.mu.Lock()
	w.s.waiting.epoll = epoll
	w.s.waiting.mu.Unlock()
}

// A connection costs one call of the processes that wait for it, however many these are.
func TestConnectionWakesOneCall(t *testing.T) {
	const workers, clients = 8, 20
	w := newAcceptWorld(t, fmt.Sprintf("workers %d", workers), 0)
	w.waiters(workers)
	before := w.enforcer.passes.Load()
	for range clients {
		w.must(w.asks(w.host, "w"))
		w.waiters(workers) // the next call of who had the connection
	}
	// One takes the connection, and its next one waits. When that was in time for the connection, one finds none.
	if got := w.enforcer.passes.Load() - before; got > 3*clients {
		t.Errorf("%d connections took %d calls of %d processes", clients, got, workers)
	}
}

// A process that was killed while it waited, keeps no connection from the others.
func TestKilledWorkerKeepsNoConnection(t *testing.T) {
	const workers = 4
	w := newAcceptWorld(t, fmt.Sprintf("workers %d", workers), 0)
	w.waiters(workers)
	for left := workers - 1; left > 0; left-- {
		oldest := w.s.waiting.all()[0].request
		w.must(unix.Kill(oldest.Thread, unix.SIGKILL))
		testkit.Eventually(t, func() error {
			if w.s.listener.Valid(oldest.ID) {
				return errors.New("the process waits")
			}
			return nil
		})
		w.must(w.asks(w.own, "w"))
		w.must(w.asks(w.host, "w"))
		w.waiters(left)
	}
}

// SO_RCVTIMEO limits accept(2).
func TestAcceptHasALimit(t *testing.T) {
	const limit = 50 * time.Millisecond
	w := newAcceptWorld(t, "once", limit)
	if got, want := w.hears(), fmt.Sprint(-1, unix.EAGAIN); got != want {
		t.Errorf("accept says %q, want %q", got, want)
	}
	if took := time.Since(w.released); took < limit {
		t.Errorf("accept waited for %v of %v", took, limit)
	}
	w.counts(1, 1)
}

// A signal ends a call with a limit, whether its handler lets calls be restarted or not.
func TestSignalEndsCallWithALimit(t *testing.T) {
	if !waitsKillably() {
		t.Skip("skip: needs Linux 5.19: SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV") // else the kernel starts it again
	}
	w := newAcceptWorld(t, "once", time.Hour)
	w.waiters(1)
	w.must(unix.Tgkill(w.process.Pid, w.s.waiting.all()[0].request.Thread, unix.SIGURG))
	if got, want := w.hears(), fmt.Sprint(-1, unix.EINTR); got != want {
		t.Errorf("accept says %q, want %q", got, want)
	}
}
