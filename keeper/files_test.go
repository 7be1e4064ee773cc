package keeper

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/forks"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// limitFiles lets the process have so many more descriptors.
func limitFiles(t *testing.T, more int) (restore func()) {
	t.Helper()
	testkit.Eventually(t, func() error {
		if n := forks.Starting(); n > 0 {
			return fmt.Errorf("%d children have not closed their files", n)
		}
		return nil
	})
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	var spare []int
	highest := 0
	for range 10 { // fills the gaps below
		fd, err := unix.Open(os.DevNull, unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		spare = append(spare, fd)
		highest = max(highest, fd)
	}
	limit := old
	limit.Cur = uint64(highest + 1)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	for {
		fd, err := unix.Open(os.DevNull, unix.O_CLOEXEC, 0)
		if err != nil {
			break
		}
		spare = append(spare, fd)
	}
	closeAll(spare[:more])
	return func() {
		closeAll(spare[more:])
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
			t.Error(err)
		}
	}
}

func TestOutOfFiles(t *testing.T) {
	testkit.CheckLeaks(t)
	for _, room := range []int{0, 1, 3} {
		k := start(t, Config{})
		restore := limitFiles(t, room)
		var got []int
		var err error
		for len(got) < 10 {
			var fd int
			if fd, err = k.Socket(tcp); err != nil {
				break
			}
			got = append(got, fd)
		}
		closeAll(got)
		restore()
		var refused *SocketError
		if !errors.Is(err, ErrFiles) || errors.As(err, &refused) {
			t.Errorf("room for %d: %v, want %v", room, err, ErrFiles)
		}
		if len(got) != room {
			t.Errorf("room for %d: got %d sockets", room, len(got))
		}
		socket(t, k, tcp) // it recovers
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Idle sockets of one kind do not keep another from having any.
func TestOutOfFilesTakesFromOtherPools(t *testing.T) {
	testkit.CheckLeaks(t)
	k := start(t, Config{})
	restore := limitFiles(t, 2)
	a, err := k.Socket(tcp) // the other of the batch is idle
	if err != nil {
		t.Error(err)
	}
	b, err := k.Socket(udp)
	if err != nil {
		t.Error(err)
	}
	_, err = k.Socket(udp)
	restore()
	closeAll([]int{a, b})
	if !errors.Is(err, ErrFiles) {
		t.Errorf("third socket: %v, want %v", err, ErrFiles)
	}
}

// A batch that comes in part, and that nobody waits for, is given back: others
// in this process need the descriptors more.
func TestOutOfFilesHoardsNothing(t *testing.T) {
	testkit.CheckLeaks(t)
	p := newPeer(t)
	results := p.ask(tcp, 2)
	r := p.request()
	p.waiting(tcp, 2)
	p.serve(r)
	for range 2 {
		if err := p.result(results); err != nil {
			t.Fatal(err)
		}
	}
	r = p.request() // ahead of need
	if r.count < 3 {
		t.Fatalf("%d sockets asked for, want more", r.count)
	}
	restore := limitFiles(t, 2)
	defer restore()
	fds := make([]int, r.count)
	for i := range fds {
		fds[i] = p.fd
	}
	p.answerWith(reply{op: opSockets, tag: r.tag, count: len(fds)}, fds)
	testkit.Eventually(t, func() error {
		p.client.mu.Lock()
		defer p.client.mu.Unlock()
		if p.client.batch != nil {
			return errors.New("batch has not come")
		}
		return nil
	})
	if n := p.stock(tcp); n != 0 {
		t.Errorf("%d sockets are kept", n)
	}
	for range 2 {
		fd, err := unix.Open(os.DevNull, unix.O_CLOEXEC, 0)
		if err != nil {
			t.Errorf("open another file: %v", err)
			continue
		}
		defer unix.Close(fd)
	}
}
