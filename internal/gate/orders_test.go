package gate

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// serve answers what needs a supervisor, in this process, until the gate is gone: why is in
// the channel that it returns.
func serve(c *container, g *Gate, reports *[]Ask) <-chan error {
	ended := make(chan error, 1)
	g.Serve(func(a Ask) {
		switch {
		case a.Answered:
			if reports != nil {
				*reports = append(*reports, a)
			}
		case a.Call == Bind:
			_ = reply(c.process.Listener, a.ID, answered, 0)
		default:
			_ = reply(c.process.Listener, a.ID, 0, unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE)
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
	g := c.start(1, func(config *Config) { config.Rules = nil })
	ended := serve(c, g, nil)
	c.moves("own", &c.progress.own, 10)
	before := c.stats(g)
	if n := before.Calls[Connect].Passed; n < 10 {
		t.Errorf("without rules, %d connects were asked about", n)
	}
	c.must(g.SetRules(c.rules))
	c.moves("own", &c.progress.own, 1) // one may be under way
	before = c.stats(g)
	c.moves("own", &c.progress.own, 100)
	c.moves("asked", &c.progress.asked, 10)
	after := c.stats(g)
	if n := after.Calls[Connect].Passed - before.Calls[Connect].Passed; n > 1 {
		t.Errorf("with rules, %d connects were asked about", n)
	}
	checkStats(t, &before, &after)
	if err := g.SetRules(make([]byte, 1<<20)); !errors.Is(err, unix.EMSGSIZE) {
		t.Errorf("too many rules: %v, want %v", err, unix.EMSGSIZE)
	}
	if _, err := g.order(request{op: opRules, value: 64}); !errors.Is(err, unix.EBADF) {
		t.Errorf("rules without a file: %v, want %v", err, unix.EBADF)
	}
	if _, err := g.order(request{op: opEnd + 1}); !errors.Is(err, unix.ENOSYS) {
		t.Errorf("an unknown order: %v, want %v", err, unix.ENOSYS)
	}
	if _, err := g.order(request{op: opSet, word: uint32(words), value: 1}); !errors.Is(err, unix.EINVAL) {
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
	if _, err := os.Stat(c.door); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the door after Close: %v", err)
	}
}

// garbage sends what is no order, with any number of files; all of it is answered.
func (c *container) garbage(g *Gate) {
	c.t.Helper()
	for length := range 2 * orderSize {
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

func checkStats(t *testing.T, before, after *Stats) {
	t.Helper()
	if n := after.Born - before.Born; n < 100 {
		t.Errorf("%d sockets were born, want 100", n)
	}
	if n := after.Calls[Bind].Passed - before.Calls[Bind].Passed; n < 10 {
		t.Errorf("%d calls of bind were passed on, want 10", n)
	}
	for call := range after.Calls {
		c := &after.Calls[call]
		var timed uint64
		for _, n := range c.Time {
			timed += n
		}
		// One may be between the two words.
		if d := int64(timed) - int64(c.Answered); d < -1 || d > 1 {
			t.Errorf("%v: %d times of %d answers", Call(call), timed, c.Answered)
		}
	}
	if n := after.Calls[Connect].Answered - before.Calls[Connect].Answered; n < 100 {
		t.Errorf("%d connects were answered, want 100", n)
	}
	if fast := after.Calls[Connect].Time[0]; fast != 0 {
		t.Errorf("%d connects took no time", fast)
	}
}

func TestTraced(t *testing.T) {
	c := newContainer(t)
	g := c.start(0, func(config *Config) { config.Report = true })
	var reports []Ask
	ended := serve(c, g, &reports)
	c.moves("own", &c.progress.own, 50)
	g.SetTraced(false)
	// One may have been about to be told of.
	before := c.stats(g)
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
	if n := uint64(len(reports)); n > before.Calls[Socket].Answered+before.Calls[Connect].Answered+2 {
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
