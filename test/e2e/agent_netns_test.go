package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A container names a FIFO, a device or a file as the namespace of an endpoint: it is
// refused with a line, alone and by an agent, which then serves other containers.
func TestNetnsThatIsNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	n := startAgent(t, w)
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, "/dev/zero", "/proc/self/root" + fifo, "/etc/passwd"} {
		for _, agent := range []string{"none", n.socket()} {
			r := try(t, command(t, w.h, tsugiki, "run", "--agent", agent, "--run-dir", filepath.Join(t.TempDir(), "run"),
				"--endpoint", "e type ipv4 addr 0.0.0.0 port dynamic netns "+path, "-e", "0.0.0.0/0=e", "--", "true"))
			if exitStatus(r.err) != 1 || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, path+": no network namespace") {
				t.Errorf("%s, agent %s: %v: %s", path, agent, r.err, r.stderr)
			}
		}
	}
	o := n.obey(t, variants[0].flags(w)...)
	o.want(sourceAddr4, "dial a tcp %s", remoteObserver())
	o.release()
}
