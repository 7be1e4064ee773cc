package guest

import (
	"errors"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/outsource/wire"
)

// TestRequestsMax has a host that does not answer yet. No more requests come than may wait for a reply:
// behind them comes the answer to a question.
func TestRequestsMax(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[1]), "host")
	host, err := net.FileConn(f)
	f.Close()
	if err == nil {
		err = host.SetDeadline(time.Now().Add(testkit.Patience))
	}
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	c := newControl()
	c.file, c.waiting = os.NewFile(uintptr(fds[0]), "control"), map[uint32]chan *wire.Message{}
	go c.read(c.file, c.waiting)

	errs := make([]error, 2*wire.RequestsMax)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() { _, errs[i] = c.call(&wire.Message{Op: wire.Names, Handle: 1}) })
	}
	read := func() *wire.Message {
		m, err := wire.Read(host)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	write := func(m *wire.Message) {
		b, err := m.Append(nil)
		if err == nil {
			_, err = host.Write(b)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	waiting := make([]*wire.Message, wire.RequestsMax)
	for i := range waiting {
		waiting[i] = read()
	}
	write(&wire.Message{Op: wire.Alive, ID: 7, Handle: 1})
	if m := read(); m.Op != wire.Alive || m.ID != 7 {
		t.Fatalf("behind %d requests that wait comes %+v", len(waiting), m)
	}
	for i := range errs {
		if i >= len(waiting) {
			waiting = append(waiting, read())
		}
		write(&wire.Message{Op: wire.Names, Flags: wire.FlagReply, ID: waiting[i].ID})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}
