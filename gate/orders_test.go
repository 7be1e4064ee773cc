package gate

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// serve answers what needs a supervisor, in this process, until the gate is gone: why is in
// the channel that it returns.
func serve(c *container, g *Gate, reports *[]Request) <-chan error {
	ended := make(chan error, 1)
	g.Serve(func(a Request) {
		switch {
		case a.Answered:
			if reports != nil {
				*reports = append(*reports, a)
			}
		case a.Call == Bind:
			_ = reply(c.listener, a.ID, answered, 0)
		default:
			_ = reply(c.listener, a.ID, 0, unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE)
		}
	}, nil, func(err error) { ended <- err })
	return ended
}

func (c *container) stats(g *Gate) Stats {
	c.t.Helper()
	s, err := g.Stats()
	c.must(err)
	return s
}

func TestOrders(t *testing.T) {
	c := newContainer(t)
	c.idleAfter = time.Hour // the process stays
	g := c.start(1, func(config *Config) { config.Rules = nil })
	ended := serve(c, g, nil)
	c.moves("own", &c.progress.own, 10)
	c.quiet(true)
	testkit.Settle(t, c.gatePID()) // a call ends before its time is counted
	before := c.counted(g)
	if n := before.Calls[Connect].Passed; n != before.own {
		t.Errorf("without rules, %d of %d connects were asked about", n, before.own)
	}
	c.must(g.SetRules(c.rules))
	c.quiet(false)
	c.moves("own", &c.progress.own, 100)
	c.moves("asked", &c.progress.asked, 10)
	c.quiet(true)
	testkit.Settle(t, c.gatePID()) // a call ends before its time is counted
	after := c.counted(g)
	if n := after.Calls[Connect].Passed - before.Calls[Connect].Passed; n != 0 {
		t.Errorf("with rules, %d connects were asked about", n)
	}
	checkStats(t, &before, &after)
	c.quiet(false)
	if err := g.SetRules(make([]byte, 1<<20)); !errors.Is(err, unix.EMSGSIZE) {
		t.Errorf("too many rules: %v, want %v", err, unix.EMSGSIZE)
	}
	if _, err := g.order(order{op: opRules, value: 64}); !errors.Is(err, unix.EBADF) {
		t.Errorf("rules without a file: %v, want %v", err, unix.EBADF)
	}
	if _, err := g.order(order{op: opName + 1}); !errors.Is(err, unix.ENOSYS) {
		t.Errorf("an unknown order: %v, want %v", err, unix.ENOSYS)
	}
	if _, err := g.order(order{op: opSet, word: uint32(words), value: 1}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("an unknown word: %v, want %v", err, unix.EINVAL)
	}
	c.garbage(g)
	// Sockets that may be the container's own are looked at, and found in place.
	for w := range traced {
		g.Set(w)
	}
	c.moves("own", &c.progress.own, 10)
	c.allRight()
	c.must(c.group.Kill())
	<-ended
	if _, err := g.Stats(); !errors.Is(err, io.EOF) {
		t.Errorf("statistics of a gate that was killed: %v, want %v", err, io.EOF)
	}
	g.SetTraced(true) // returns
	c.must(g.Close())
	if _, err := os.Stat(c.adoptSocket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the adoption socket after Close: %v", err)
	}
}

// garbage sends what is no order, with any number of files; all of it is answered.
func (c *container) garbage(g *Gate) {
	c.t.Helper()
	for length := range 2 * int(unsafe.Sizeof(orderMessage{})) {
		b := bytes.Repeat([]byte{byte(length) | 0x80}, length) // no tag of ours
		for _, files := range [][]int{nil, {1}, {0, 1, 2}} {
			var rights []byte
			if files != nil {
				rights = unix.UnixRights(files...)
			}
			_, _, err := g.conn.WriteMsgUnix(b, rights, nil)
			c.must(err)
		}
	}
	c.stats(g) // behind all of these
	usage, err := testkit.ProcessUsage(c.gatePID())
	c.must(err)
	if usage.FDs > 20 {
		c.t.Errorf("the gate has %d files open", usage.FDs)
	}
}

// counted is what a gate has counted, and what its program has, while there are no calls.
type counted struct {
	Stats
	asked, own uint64
}

func (c *container) counted(g *Gate) counted {
	c.t.Helper()
	return counted{c.stats(g), c.progress.asked.Load(), c.progress.own.Load()}
}

// checkStats checks what was counted between two moments without calls.
func checkStats(t *testing.T, before, after *counted) {
	t.Helper()
	asked, own := after.asked-before.asked, after.own-before.own
	if n := after.Single - before.Single; n != own {
		t.Errorf("%d single sockets were made, want %d", n, own)
	}
	if n := after.Calls[Bind].Passed - before.Calls[Bind].Passed; n != asked {
		t.Errorf("%d calls of bind were passed on, want %d", n, asked)
	}
	for call := range after.Calls {
		c := &after.Calls[call]
		var timed uint64
		for _, n := range c.Time {
			timed += n
		}
		if timed != c.Answered {
			t.Errorf("%v: %d times of %d answers", Call(call), timed, c.Answered)
		}
	}
	if n := after.Calls[Connect].Answered - before.Calls[Connect].Answered; n != own {
		t.Errorf("%d connects were answered, want %d", n, own)
	}
	if fast := after.Calls[Connect].Time[0]; fast != 0 {
		t.Errorf("%d connects took no time", fast)
	}
}

func TestTraced(t *testing.T) {
	c := newContainer(t)
	g := c.start(0, func(config *Config) { config.Report = true })
	var reports []Request
	ended := serve(c, g, &reports)
	c.moves("own", &c.progress.own, 50)
	c.quiet(true)
	g.SetTraced(false)
	before := c.stats(g)
	c.quiet(false)
	c.moves("own", &c.progress.own, 100)
	after := c.stats(g)
	c.progress.stop.Store(1)
	<-c.ended
	if err := <-ended; !errors.Is(err, ErrEnded) {
		t.Errorf("it ended with %v, want %v", err, ErrEnded)
	}
	if len(reports) < 100 { // socket and connect
		t.Errorf("%d calls were told of, want 100", len(reports))
	}
	if n := uint64(len(reports)); n != before.Calls[Socket].Answered+before.Calls[Connect].Answered {
		t.Errorf("%d calls were told of, of %+v and %+v that were answered by then", n, before.Calls[Socket].Answered, before.Calls[Connect].Answered)
	}
	if after.Unreported != 0 {
		t.Errorf("%d calls were not told of", after.Unreported)
	}
	if !g.EndedWell() {
		t.Error("the gate did not end with its container")
	}
	c.must(g.Close())
}

// What the gate has answered is told also after it is closed, or stopped.
func TestToldAtTheEnd(t *testing.T) {
	for name, end := range map[string]func(g *Gate){
		"closed":  func(g *Gate) { _ = g.Close() },
		"stopped": func(g *Gate) { g.Stop() },
	} {
		t.Run(name, func(t *testing.T) {
			c := newContainer(t)
			g := c.start(0, func(config *Config) { config.Report = true })
			told, ended, over := 0, make(chan struct{}), make(chan struct{})
			g.Serve(func(r Request) {
				<-ended // all that has come waits
				if r.Answered {
					told++
				}
			}, nil, func(error) { close(over) })
			c.moves("own", &c.progress.own, 50)
			c.quiet(true)
			want := c.stats(g)
			end(g)
			close(ended)
			<-over
			if n := want.Calls[Socket].Answered + want.Calls[Connect].Answered; n < 100 || uint64(told) != n {
				t.Errorf("%d calls were told of, want all %d that were answered", told, n)
			}
			if name == "stopped" {
				c.must(g.Close())
			}
		})
	}
}
