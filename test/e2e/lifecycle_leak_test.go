package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// What the processes of tsugiki may have more after much work than after a
// little: descriptors of sockets that are made ahead and of callers that are
// remembered, and threads of the Go runtime.
const (
	// The supervisor keeps up to 256 files of programs that it has served.
	slackFiles = 256 + 32
	// The Go runtime keeps the threads that calls needed at once: up to 64 (notify/slots.go).
	slackThreads = 64 + 16
)

// nowhere is an address of the remote's network that swallows what is sent to it.
const nowhere = "198.51.100.50:7001"

// swallow makes it so: it has a link address, so that nobody asks for it, and
// nobody has that.
func (a *arena) swallow() {
	a.t.Helper()
	addr, _, _ := strings.Cut(nowhere, ":")
	succeed(a.t, command(a.t, a.Host, "ip", "neigh", "add", addr, "lladdr", "02:00:5e:10:00:01", "dev", "srv"))
}

// usage of all processes of tsugiki.
func (c *container) usage(t *testing.T) map[int]testkit.Usage {
	t.Helper()
	found := map[int]testkit.Usage{}
	for _, pid := range append(c.helpers(), c.Process.Pid) {
		u, err := testkit.ProcessUsage(pid)
		if err != nil {
			t.Fatal(err)
		}
		found[pid] = u
	}
	return found
}

// Neither a lot of work nor callers that are killed in the middle of it leave
// anything in those who serve them.
func TestLifecycleNoLeaks(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	a.swallow()
	rules := append(slices.Clone(withIngress()), "-e", nowhere+"=out")
	// A tenth of the calls come before the first look: enough for all threads and files that
	// are kept for later.
	for _, tt := range []struct {
		load  string
		count int
		to    string
	}{
		{"short", testkit.Times(5000, 20000), allowed4.String()},
		{"killed", 1500, nowhere},
		{"exec", 300, allowed4.String()},
		{"threads", 1000, allowed4.String()},
	} {
		t.Run(tt.load, func(t *testing.T) {
			c := newContainer(t, a.Host, rules, "warm", attackProgram(t, "static"), tt.load, fmt.Sprint(tt.count), tt.to)
			before := c.usage(t)
			c.next()
			c.await("hold")
			if want := fmt.Sprintf("failed: 0 of %d", tt.count+tt.count/10); !slices.Contains(c.said, want) {
				t.Errorf("want %q, got %q", want, c.said)
			}
			testkit.Eventually(t, func() error {
				for pid, after := range c.usage(t) {
					if after.FDs > before[pid].FDs+slackFiles || after.Threads > before[pid].Threads+slackThreads {
						return fmt.Errorf("process %d has %+v, had %+v", pid, after, before[pid])
					}
				}
				return nil
			})
			t.Logf("%d: %v, was %v", c.Process.Pid, c.usage(t), before)
			_ = c.stdin.Close()
			c.waitEnd(t)
			checkLog(t, c.Cmd, c.stderr.String())
			testkit.Eventually(t, func() error { return c.gone(t) })
		})
	}
}

// A call that waits for a peer, or for memory that is never there, is waited for
// by nobody else.
func TestLifecycleOthersDoNotWait(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	a.swallow()
	rules := append(slices.Clone(minimal()), "-e", nowhere+"=out")
	check := func(t *testing.T, out string) {
		t.Helper()
		if n := strings.Count(out, "connect: ok"); n != 20 {
			t.Errorf("%d of 20 connections were made:\n%s", n, out)
		}
	}
	t.Run("peers", func(t *testing.T) {
		check(t, succeed(t, a.attack("static", rules, "blackhole", "200", nowhere, allowed4.String())))
	})
	t.Run("memory", func(t *testing.T) {
		needsUserfaultfd(t)
		for _, threads := range []string{"1", "8", "40"} {
			check(t, succeed(t, a.attack("static", append(rules, "--cap-add", "SYS_PTRACE"), "memory", threads, allowed4.String())))
		}
	})
}

// A user who stops those of its helpers that it can stop does not save its
// programs from the death of tsugiki.
func TestLifecycleKilledInSpiteOf(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	flags := append(slices.Clone(withIngress()), "-u", "65534:65534")
	c := newContainer(t, a.Host, flags, "ready", attackProgram(t, "static"), "family", allowed4.String())
	succeed(t, command(t, a.Host, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all",
		"sh", "-c", "kill -STOP "+strings.Trim(fmt.Sprint(c.helpers()), "[]")+"; true"))
	_ = unix.Kill(c.Process.Pid, unix.SIGKILL)
	_ = c.Process.Release() // its daemons may have its standard output
	testkit.Eventually(t, func() error { return c.dead(t) })
	c.sweep(t)
	testkit.Eventually(t, func() error { return c.gone(t) })
}
