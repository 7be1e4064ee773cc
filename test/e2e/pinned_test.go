package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// pinningThreads are more than the agent has slots for one container.
const pinningThreads = 300

// pinnedThreadsMax limits the agent's threads while one container pins it. Each slot of that
// container may take one. The agent has the others for all its other work.
const pinnedThreadsMax = 64 + 40

func agentThreads(t *testing.T, n *asked) int {
	t.Helper()
	usage, err := testkit.ProcessUsage(n.cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return usage.Threads
}

// pageDevices are those by which a program has memory that nobody fills.
var pageDevices = map[string]string{"memory": "fuse", "socket": "userfaultfd", "epoll": "userfaultfd"}

// pageDevice makes a device like one of the machine's, which every user may open.
func pageDevice(t *testing.T, name string) string {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat("/dev/"+name, &st); err != nil {
		t.Skipf("skip: needs /dev/%s", name)
	}
	path := filepath.Join(tmpDir, name)
	if err := unix.Mknod(path, unix.S_IFCHR, int(st.Rdev)); err != nil && !errors.Is(err, unix.EEXIST) {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

// waitingCalls counts the threads of a container's program whose calls have been trapped.
func (o *obedient) waitingCalls() int {
	stacks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/wchan", o.program()))
	count := 0
	for _, path := range stacks {
		if where, err := os.ReadFile(path); err == nil && strings.Contains(string(where), "seccomp") {
			count++
		}
	}
	return count
}

// program is the process that tsugiki run has started, 0 if there is none.
func (o *obedient) program() int {
	if all := children(o.Process.Pid); len(all) > 0 {
		return all[0]
	}
	return 0
}

// pin starts a container with calls that cannot be answered, and waits until they are made.
func (n *asked) pin(t *testing.T, way string, to string, flags []string, more ...string) *obedient {
	t.Helper()
	o := &obedient{w: n.w, name: uniqueName("pin"), runDir: n.run}
	args := append([]string{"run", "--run-dir", n.run, "--name", o.name}, flags...)
	args = append(args, "--", attackProgram(t, "static"), "pin", way, pageDevice(t, pageDevices[way]), fmt.Sprint(pinningThreads), to)
	o.held = hold(t, command(t, n.w.h, tsugiki, append(args, more...)...), "hold")
	testkit.Eventually(t, func() error {
		if now := o.waitingCalls(); now < pinningThreads {
			return fmt.Errorf("%d calls wait, want %d", now, pinningThreads)
		}
		return nil
	})
	return o
}

// A program holds what the agent waits for when it answers calls: memory that nobody fills, a
// socket's lock, an epoll's. It takes a bounded number of the agent's threads, and holds up
// no call of another container.
func TestAgentPinned(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	v := variants[0]
	own := "127.0.0.1:9"
	for _, tt := range []struct{ way, to string }{
		{"memory", own},
		{"socket", remoteObserver()},
		{"socket", fmt.Sprintf("[%s]:%d", remoteAddr6, observerPort)},
		{"epoll", own},
		{"epoll", "[::1]:9"},
	} {
		for user, flags := range users {
			if tt.way == "memory" && user != "root" {
				continue // such a file system serves only users of its namespace, and the agent is root
			}
			t.Run(tt.way+" "+tt.to+" "+user, func(t *testing.T) {
				n := startBesieged(t, w)
				victim := n.obey(t, v.flags(w)...)
				o := n.pin(t, tt.way, tt.to, slices.Concat(v.flags(w), flags, []string{"--endpoint", "any type ipv4 addr 0.0.0.0 port dynamic"}))
				for range 20 {
					// The agent has to answer: listen(2), and a connect to the own namespace.
					victim.want("listens", "listen l 127.0.0.1:0")
					victim.want("ECONNREFUSED", "dial x tcp 127.0.0.1:9")
					victim.want("ECONNREFUSED", "dial x tcp [::1]:9")
					victim.want("closed", "close l")
				}
				if threads := agentThreads(t, n); threads > pinnedThreadsMax {
					t.Errorf("the agent has %d threads, want at most %d", threads, pinnedThreadsMax)
				}
				n.obey(t, v.flags(w)...).release() // another starts
				if ps := n.ps(); !strings.Contains(ps, o.name) {
					t.Errorf("tsugiki ps does not list the container that pins:\n%s", ps)
				}
				o.release()
				victim.release()
			})
		}
	}
}

// Memory that outlives its container holds up neither the end of that container nor the start
// and the end of another of its name.
func TestAgentPinnedForGood(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := startBesieged(t, w)
	path := filepath.Join(filepath.Dir(n.run), "page.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	flags := append(variants[0].flags(w), "--endpoint", "any type ipv4 addr 0.0.0.0 port dynamic")
	o := n.pin(t, "memory", "127.0.0.1:9", flags, path)
	page, err := l.Accept() // it has the page's descriptor in its queue
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	o.release()
	if ps := n.ps(); strings.Contains(ps, o.name) {
		t.Errorf("the container is there:\n%s", ps)
	}
	succeed(t, n.graft("--name", o.name, "-e", "0.0.0.0/0=0.0.0.0", "--", "true"))
}
