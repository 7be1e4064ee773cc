package gate

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// A gate that is stopped for long is silent however often it is tried, and lets in who comes when it
// goes on.
func TestStoppedForLong(t *testing.T) {
	c := newContainer(t)
	g := c.start(1, nil)
	c.must(g.Release())
	pid := c.gatePID()
	c.must(unix.Kill(pid, unix.SIGSTOP))
	for i := range 20 {
		if _, err := Adopt(c.adoptSocket, time.Millisecond); !errors.Is(err, ErrSilent) {
			t.Fatalf("adopted for the %dth time: %v, want %v", i, err, ErrSilent)
		}
	}
	c.must(unix.Kill(pid, unix.SIGCONT))
	c.eventually("it hears again", func() bool { // and lets us in from no other namespace than the host's
		_, err := Adopt(c.adoptSocket, testkit.Patience)
		return errors.Is(err, ErrRefused)
	})
	h := c.helper(c.top.Host, "answer", filepath.Join(c.dir, "journal"))
	h.says("adopted")
	c.must(c.programs.Kill())
	h.says("ended true")
	c.must(h.cmd.Wait())
}

// A gate of which nothing can be watched when it becomes idle is not lost. The epolls of all root
// processes have so many entries in all, and a container of root's can fill them.
func TestNothingCanBeWatched(t *testing.T) {
	strace := testkit.Program(t, "strace")
	c := newContainer(t)
	c.idleAfter = 0
	g := c.start(1, nil)
	ended := serve(c, g, nil)
	c.moves("asked", &c.progress.asked, 1)
	testkit.Settle(t, c.pool.group) // it watches what it needs for a gate that works
	said := filepath.Join(c.dir, "strace")
	full := exec.Command(strace, "-p", fmt.Sprint(c.pool.group), "-o", said, "-e", "inject=epoll_ctl:error=ENOSPC")
	c.must(full.Start())
	says := func(what string) func() bool {
		return func() bool {
			text, err := os.ReadFile(said)
			return err == nil && strings.Contains(string(text), what)
		}
	}
	// To attach interrupts the pool's wait. With the line of the next wait, strace has every call.
	c.eventually("the trace begins", says("epoll_"))
	c.quiet(true)
	c.exits()
	c.eventually("nothing can be watched", says("EPOLL_CTL_ADD"))
	c.must(full.Process.Signal(unix.SIGINT))
	_ = full.Wait() // it ends by the signal
	c.quiet(false)
	c.moves("asked", &c.progress.asked, 10)
	c.allRight()
	c.must(c.programs.Kill())
	if err := <-ended; !errors.Is(err, ErrEnded) {
		t.Errorf("it ended with %v, want %v", err, ErrEnded)
	}
	c.must(g.Close())
}
