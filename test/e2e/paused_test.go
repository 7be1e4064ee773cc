package e2e

import (
	"fmt"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// threadsOf are the ids of a process's threads.
func threadsOf(t *testing.T, pid int) (ids []int) {
	t.Helper()
	paths, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		ids = append(ids, atoi(t, filepath.Base(path)))
	}
	return ids
}

// The scheduler may let a program go on with a socket long before the gate's thread that made it. What
// that thread still has then keeps no port of the program's: bind(2) waits for it.
func TestPausedGateKeepsNoPort(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	flags := append(variants[0].flags(w), "--endpoint", "in type ipv4 addr "+hostAddr4+" port 80", "-i", "0.0.0.0:8080=in")
	o := w.obey(t, t.TempDir(), flags...)
	o.want("listens", "listen first 0.0.0.0:8080")
	o.want("closed", "close first")
	gate := o.helper(t, "tsugiki-gate")
	var serving int
	testkit.Eventually(t, func() error { // one that was given up ends
		ids := threadsOf(t, gate)
		if len(ids) != 2 {
			return fmt.Errorf("the gate has %d threads, want one that serves beside the first", len(ids))
		}
		serving = max(ids[0], ids[1])
		if serving == gate {
			serving = min(ids[0], ids[1])
		}
		return nil
	})
	paused, resume := testkit.PauseAfter(t, serving, unix.SECCOMP_IOCTL_NOTIF_ADDFD)
	listens := make(chan string, 1)
	o.begin("listen second 0.0.0.0:8080")
	go func() {
		o.lines.Scan()
		listens <- o.lines.Text()
	}()
	select {
	case <-paused:
	case got := <-listens:
		t.Fatalf("no socket came from the thread; the program says %s", got)
	}
	// Either another thread has answered bind(2), or it waits in its turn and a third serves.
	testkit.Eventually(t, func() error {
		if n := len(threadsOf(t, gate)); n < 4 && len(listens) == 0 {
			return fmt.Errorf("bind(2) has no answer, and the gate has %d threads, want 4", n)
		}
		return nil
	})
	if len(listens) == 0 {
		resume()
	}
	if got := <-listens; got != "listens" {
		t.Errorf("listen: %s", got)
	}
	o.want("closed", "close second")
	o.want("listens", "listen third 0.0.0.0:8080")
	resume()
	o.release()
}

// rebinding binds a port, closes it and binds it again until standard input ends, and prints how often
// it did, and how often the port was not free.
const rebinding = `
import select, socket, sys
print("ready", flush=True)
binds = taken = 0
while not select.select([0], [], [], 0)[0]:
    s = socket.socket()
    try:
        s.bind(("0.0.0.0", 8080))
    except OSError:
        taken += 1
    binds += 1
    s.close()
print(binds, taken)
`

// The agent forks when a container starts. Until the child executes its program, it has what the agent
// has: duplicates of sockets of other programs, too. They keep no port of these programs.
func TestForksKeepNoPort(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := startBesieged(t, w)
	flags := append(variants[0].flags(w), "--endpoint", "in type ipv4 addr "+hostAddr4+" port 80", "-i", "0.0.0.0:8080=in")
	binder := hold(t, n.graft(append(flags, "--", python(t), "-c", rebinding)...), "ready")
	for range 40 { // the agent starts a keeper for each
		succeed(t, n.graft(append(variants[0].flags(w), "--", "true")...))
	}
	said := binder.release()
	var binds, taken int
	if _, err := fmt.Sscan(said[len(said)-1], &binds, &taken); err != nil || binds == 0 || taken != 0 {
		t.Errorf("the program has bound and closed a port %d times, which was not free %d times (%v)", binds, taken, err)
	}
}
