package notify

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/graft"
)

// A call that was carried out before a signal took the program is found by the thread's next
// one, if that is the same, and by no other.
func TestInterruptedCallIsFound(t *testing.T) {
	first := gate.Request{Call: gate.Bind, ID: 1, Thread: 10, Number: 3}
	for _, tt := range []struct {
		name string
		next gate.Request
		want bool
	}{
		{"the same", gate.Request{Call: gate.Bind, ID: 2, Thread: 10, Number: 3}, true},
		{"another descriptor", gate.Request{Call: gate.Bind, ID: 2, Thread: 10, Number: 4}, false},
		{"another call", gate.Request{Call: gate.Listen, ID: 2, Thread: 10, Number: 3}, false},
		{"another thread", gate.Request{Call: gate.Bind, ID: 2, Thread: 11, Number: 3}, false},
	} {
		threads := newThreads()
		if _, found := threads.begin(first); found {
			t.Errorf("%s: the first is found", tt.name)
		}
		threads.interrupt(first, first.ID)
		threads.end(first)
		id, found := threads.begin(tt.next)
		if found != tt.want || found && id != first.ID {
			t.Errorf("%s: %d, %v", tt.name, id, found)
		}
		threads.end(tt.next)
		// The thread has made another call: what was carried out is nobody's.
		again := tt.next
		again.Call, again.Number = first.Call, first.Number
		if _, found := threads.begin(again); found {
			t.Errorf("%s: it is found a second time", tt.name)
		}
		threads.end(again)
	}
}

// A call is remembered if it has changed its socket.
func TestCallIsCarriedOut(t *testing.T) {
	proceed, inProgress := graft.Answer{}, fail(unix.EINPROGRESS)
	for _, tt := range []struct {
		name     string
		call     gate.Call
		answer   graft.Answer
		replaced bool
		repeats  bool
		want     bool
	}{
		{name: "bound", call: gate.Bind, answer: succeed(), want: true},
		{name: "refused", call: gate.Bind, answer: fail(unix.EADDRINUSE)},
		{name: "left to the kernel", call: gate.Bind, answer: proceed},
		{name: "ended by the signal when one of two descriptors was replaced", call: gate.Bind, answer: proceed, replaced: true, want: true},
		{name: "interrupted twice", call: gate.Bind, answer: proceed, repeats: true, want: true},
		{name: "connected", call: gate.Connect, answer: succeed(), want: true},
		{name: "connects", call: gate.Connect, answer: inProgress, want: true},
		{name: "no route", call: gate.Connect, answer: fail(unix.ENETUNREACH)},
		{name: "connected by its data", call: gate.Send, answer: succeed(), want: true},
		{name: "another call", call: gate.Listen, answer: succeed()},
	} {
		p := &program{request: gate.Request{Call: tt.call, ID: 2}, call: 2, replaced: tt.replaced}
		if tt.repeats {
			p.call = 1
		}
		if got := p.carriedOut(tt.answer); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// Calls of one thread are answered one after another, and no other thread's wait for them.
func TestCallsOfAThreadWait(t *testing.T) {
	threads := newThreads()
	first, second := gate.Request{ID: 1, Thread: 10}, gate.Request{ID: 2, Thread: 10}
	threads.begin(first)
	order := make(chan uint64, 2)
	done := make(chan struct{})
	go func() {
		defer close(done)
		threads.begin(second)
		order <- second.ID
		threads.end(second)
	}()
	for thread := range 100 { // others go on
		other := gate.Request{Thread: 100 + thread}
		threads.begin(other)
		threads.end(other)
	}
	order <- first.ID
	threads.end(first)
	<-done
	if got := [2]uint64{<-order, <-order}; got != [2]uint64{1, 2} {
		t.Errorf("the calls were answered in the order %v", got)
	}
}

// No more interruptions are remembered than there is room for.
func TestInterruptionsAreBounded(t *testing.T) {
	threads := newThreads()
	for thread := range 3 * interruptionsMax {
		threads.interrupt(gate.Request{Thread: thread}, 1)
		if n := len(threads.interrupted); n > interruptionsMax {
			t.Fatalf("%d are remembered", n)
		}
	}
}
