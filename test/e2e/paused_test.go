package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
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
// it did, and how often the port was not free. The port is one number, or for 0 one of the kernel's
// choice, that a socket before had: by bind(2), or by listen(2) alone.
const rebinding = `
import select, socket, sys
addr, port, listens = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "listen"
print("ready", flush=True)
binds = taken = 0
while not select.select([0], [], [], 0)[0]:
    at = port
    if at == 0:
        first = socket.socket()
        if not listens:
            first.bind((addr, 0))
        first.listen()
        at = first.getsockname()[1]
        first.close()
    s = socket.socket()
    try:
        call = "bind"
        s.bind((addr, at))
        call = "listen"
        s.listen()
    except OSError as e:
        taken += 1
        print(call, at, e, file=sys.stderr)
    binds += 1
    s.close()
print(binds, taken)
`

// The agent forks when a container starts. Until the child executes its program, it has what the agent
// has: duplicates of sockets of other programs, too. They keep no port of these programs, neither one
// that a rule promises nor one of the container's loopback.
func TestForksKeepNoPort(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := startBesieged(t, w)
	var binders []*held
	rebind := func(flags []string, args ...string) {
		c := n.graft(slices.Concat(flags, []string{"--", python(t), "-c", rebinding}, args)...)
		binders = append(binders, hold(t, c, "ready"))
	}
	serves := func(port int) []string {
		return []string{"--endpoint", fmt.Sprintf("in type ipv4 addr %s port %d", hostAddr4, port), "-i", "0.0.0.0:8080=in"}
	}
	untrapped, trapped := append(hostFirst(), "--netns", "new"), variants[2].flags(w)
	rebind(slices.Concat(untrapped, serves(80)), "0.0.0.0", "8080", "bind")
	rebind(untrapped, "127.0.0.1", "9100", "bind")
	rebind(untrapped, "127.0.0.1", "0", "bind")
	rebind(untrapped, "0.0.0.0", "0", "listen")
	rebind(slices.Concat(trapped, serves(81)), "0.0.0.0", "8080", "bind")
	rebind(trapped, "127.0.0.1", "9100", "bind")
	for range 40 { // the agent starts a keeper for each
		succeed(t, n.graft(append(variants[0].flags(w), "--", "true")...))
	}
	for _, b := range binders {
		said := b.release()
		var binds, taken int
		if _, err := fmt.Sscan(said[len(said)-1], &binds, &taken); err != nil || binds == 0 || taken != 0 {
			t.Errorf("%s: the program has bound and closed a port %d times, which was not free %d times (%v):\n%s",
				b.Args[len(b.Args)-3:], binds, taken, err, b.stderr)
		}
	}
}
