package guest

import (
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// TestKeptConnection keeps a connection for a listener: the next call gets it, before one of the kernel's queue.
// When the listener has gone, the connection ends.
func TestKeptConnection(t *testing.T) {
	testkit.CheckLeaks(t)
	var gone atomic.Bool
	q := newQueues()
	q.isFree = func(uint32) bool { return gone.Load() }
	var pair [2]int
	if err := unix.Pipe2(pair[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	peer := os.NewFile(uintptr(pair[0]), "peer")
	defer peer.Close()
	if err := peer.SetReadDeadline(time.Now().Add(testkit.Patience)); err != nil {
		t.Fatal(err)
	}
	kernel := func() (int, error) { return -1, unix.EAGAIN }
	const listener = 7
	next := func(listener uint32, keep bool) int {
		l := q.hold(listener)
		defer q.release(listener, l)
		file, err := l.next(kernel)
		if err != nil {
			file = -1
		} else if keep {
			l.files = append(l.files, file)
		}
		return file
	}
	l := q.hold(listener)
	l.files = append(l.files, pair[1])
	q.release(listener, l)
	if !q.has(listener) || q.has(listener+1) {
		t.Error("a call that waits does not hear of the connection")
	}
	if got := next(listener+1, false); got != -1 {
		t.Errorf("another listener has %d", got)
	}
	if got := next(listener, true); got != pair[1] {
		t.Errorf("the next call gets %d, not %d", got, pair[1])
	}
	gone.Store(true)
	if n, err := peer.Read(make([]byte, 1)); n != 0 || err == nil || os.IsTimeout(err) {
		t.Errorf("the connection of a listener that has gone: %d, %v", n, err)
	}
	if got := next(listener, false); got != -1 {
		t.Errorf("a closed connection is given: %d", got)
	}
	if q.has(listener) {
		t.Error("a closed connection is there")
	}
}

// TestUnheard remembers a change until its call is made again.
func TestUnheard(t *testing.T) {
	var u unheard
	one := change{3, netip.MustParseAddrPort("192.0.2.1:80")}
	u.add(one)
	for _, other := range []change{{4, one.name}, {3, netip.MustParseAddrPort("192.0.2.1:81")}, {name: one.name}} {
		if u.take(other) {
			t.Errorf("%v was not unheard", other)
		}
	}
	if !u.take(one) || u.take(one) {
		t.Error("a change is unheard once")
	}
	for handle := range uint32(3 * unheardMax) {
		u.add(change{handle, one.name})
	}
	if n := len(u.changes); n > unheardMax {
		t.Errorf("%d changes are remembered", n)
	}
}
