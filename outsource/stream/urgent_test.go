package stream

import (
	"fmt"
	"io"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/outsource/vsock"
	"github.com/tsugiki/tsugiki/outsource/wire"
)

// TestUrgentByte has a peer send an urgent byte between others. splice(2) ends at its mark: the guest gets the
// bytes behind it, too, while the peer goes on and when it has ended.
func TestUrgentByte(t *testing.T) {
	const want = "beforeafter"
	t.Run("goes on", func(t *testing.T) {
		c, peer := newRig(t).data(7)
		testkit.SendUrgent(t, peer)
		b := make([]byte, len(want))
		if n, err := io.ReadFull(c, b); err != nil || string(b) != want {
			t.Errorf("%q, %v", b[:n], err)
		}
	})
	t.Run("ended", func(t *testing.T) {
		r := newRig(t)
		c := r.open(wire.ControlPort)
		q := r.request()
		s, peer := tcp(t)
		testkit.SendUrgent(t, peer)
		if err := peer.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		awaitEnd(t, s)
		q.Accept(s)
		if b, err := io.ReadAll(c); err != nil || string(b) != want {
			t.Errorf("%q, %v", b, err)
		}
	})
}

// awaitEnd waits until all that the peer has sent is there.
func awaitEnd(t *testing.T, s vsock.Socket) {
	t.Helper()
	list := []unix.PollFd{{Fd: int32(s.File), Events: unix.POLLRDHUP}}
	testkit.Eventually(t, func() error { // a signal ends poll(2)
		if n, err := unix.Poll(list, 0); n != 1 {
			return fmt.Errorf("the peer's end has not come: %w", err)
		}
		return nil
	})
}
