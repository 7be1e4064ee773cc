package guest

import (
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/outsource/wire"
)

// hostOf makes the host's end of a control stream.
func hostOf(t *testing.T) (host net.Conn, fd int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[1]), "host")
	host, err = net.FileConn(f)
	f.Close()
	if err == nil {
		err = host.SetDeadline(time.Now().Add(testkit.Patience))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { host.Close() })
	return host, fds[0]
}

// TestMuteHost has a host that takes the connection, and says nothing.
func TestMuteHost(t *testing.T) {
	_, fd := hostOf(t)
	f := os.NewFile(uintptr(fd), "control")
	defer f.Close()
	if _, err := greet(f, fd, time.Millisecond); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("the host has said: %v", err)
	}
}

// TestProbes asks about a handle from many sides at once. A look takes the port, so there is one at a time: another
// would find the port taken.
func TestProbes(t *testing.T) {
	c := newControl()
	var taken atomic.Bool
	c.isFree = func(uint32) bool {
		if !taken.CompareAndSwap(false, true) {
			return false
		}
		time.Sleep(time.Millisecond) // others come meanwhile
		taken.Store(false)
		return true
	}
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			if c.hasHandle(7) {
				t.Error("a program has the handle")
			}
		})
	}
	all.Wait()
}

// TestGivenHandle has the host ask about a handle before the program has its socket.
func TestGivenHandle(t *testing.T) {
	host, fd := hostOf(t)
	c := newControl()
	c.isFree = func(uint32) bool { return true }
	c.file, c.waiting = os.NewFile(uintptr(fd), "control"), map[uint32]chan *wire.Message{}
	go c.read(c.file, c.waiting)
	got := make(chan error, 1)
	go func() {
		_, err := c.call(&wire.Message{Op: wire.Bind})
		got <- err
	}()
	bind, err := wire.Read(host)
	if err != nil {
		t.Fatal(err)
	}
	alive := func() unix.Errno {
		b, err := (&wire.Message{Op: wire.Alive, ID: 7, Handle: 5}).Append(nil)
		if err == nil {
			_, err = host.Write(b)
		}
		if err != nil {
			t.Fatal(err)
		}
		m, err := wire.Read(host)
		if err != nil {
			t.Fatal(err)
		}
		return unix.Errno(m.Errno)
	}
	b, err := (&wire.Message{Op: wire.Bind, Flags: wire.FlagReply, ID: bind.ID, Handle: 5}).Append(nil)
	if err == nil {
		_, err = host.Write(b)
	}
	if err != nil {
		t.Fatal(err)
	}
	if errno := alive(); errno != 0 {
		t.Errorf("a handle that no program has yet: %v", errno)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	c.got(5)
	if errno := alive(); errno != unix.ENOENT {
		t.Errorf("a handle that no program has any more: %v", errno)
	}
}

// TestRequestsMax has a host that does not answer yet. No more requests come than may wait for a reply:
// behind them comes the answer to a question.
func TestRequestsMax(t *testing.T) {
	host, fd := hostOf(t)
	c := newControl()
	c.file, c.waiting = os.NewFile(uintptr(fd), "control"), map[uint32]chan *wire.Message{}
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
