package roundtrip

import (
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// joined returns the asking end of two sockets. The peer gets each datagram, and may send on its end. Reads of
// the asking end wait for a millisecond.
func joined(t *testing.T, peer func(s int, datagram []byte) error) (asking int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	limit := unix.NsecToTimeval(int64(time.Millisecond))
	if err := unix.SetsockoptTimeval(fds[0], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		for b := make([]byte, 128); ; {
			n, err := unix.Read(fds[1], b)
			if n == 0 || err != nil {
				done <- err
				return
			}
			if err := peer(fds[1], b[:n]); err != nil {
				done <- err
				return
			}
		}
	}()
	t.Cleanup(func() {
		// The peer may still send a second answer.
		if err := unix.Shutdown(fds[1], unix.SHUT_RD); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		unix.Close(fds[0])
		unix.Close(fds[1])
	})
	return fds[0]
}

// send sends datagrams. Those for which there is no room are lost.
func send(s int, datagrams ...[]byte) error {
	for _, d := range datagrams {
		if err := unix.Send(s, d, unix.MSG_DONTWAIT); err != nil && !errors.Is(err, unix.EAGAIN) {
			return err
		}
	}
	return nil
}

// Each answer counts once, however late it comes. Datagrams without an answer are lost. The peer's answers of
// an earlier measurement are nobody's.
func TestAsk(t *testing.T) {
	var held, stale []byte
	asked := 0
	for name, c := range map[string]struct {
		peer func(s int, d []byte) error
		lost int
	}{
		"each one":     {func(s int, d []byte) error { return send(s, d) }, 0},
		"twice":        {func(s int, d []byte) error { return send(s, d, d) }, 0},
		"after others": {func(s int, d []byte) error { return send(s, stale, d) }, 0},
		"one late": {func(s int, d []byte) error { // with the answer to the next one
			if asked++; asked%2 == 1 {
				held = append([]byte{}, d...)
				return nil
			}
			return send(s, held, d)
		}, 0},
		"some": {func(s int, d []byte) error { // one in three
			if asked++; asked%3 != 0 {
				return nil
			}
			return send(s, d)
		}, 40},
	} {
		t.Run(name, func(t *testing.T) {
			asked, stale = 0, make([]byte, 128)
			times, lost, err := ask(joined(t, c.peer), 128, 20, time.Minute)
			if len(times) != 20 || lost < c.lost || err != nil {
				t.Fatalf("%d round trips, %d lost, %v", len(times), lost, err)
			}
			for _, d := range times {
				if d <= 0 || d > time.Hour {
					t.Errorf("a round trip of %s", d)
				}
			}
		})
	}
}

// A peer that never answers is an error.
func TestAskNobody(t *testing.T) {
	_, _, err := ask(joined(t, func(int, []byte) error { return nil }), 128, 20, 10*time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "have no answer") {
		t.Error(err)
	}
}
