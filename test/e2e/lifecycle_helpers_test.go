package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

var names atomic.Int32

// uniqueName is a container's name that nobody else on this machine has.
func uniqueName(what string) string {
	return fmt.Sprintf("e2e-%s-%d-%d", what, os.Getpid(), names.Add(1))
}

// container is a run of tsugiki, and all of it that has to go.
type container struct {
	*held
	host         *testkit.Namespace
	name, runDir string
	cgroup       string
	pids         []int // of programs and helpers
	programs     []ebpf.ProgramID
	link         string // of the host, whose peer is in the container's namespace
	sockets      int    // of the host, before
}

// newContainer starts a program in a run directory of its own, waits for a line
// that it prints and notes what there is.
func newContainer(t *testing.T, host *testkit.Namespace, flags []string, until string, program ...string) *container {
	t.Helper()
	c := &container{host: host, name: uniqueName("life"), runDir: t.TempDir(), sockets: socketsOf(t, host)}
	c.cgroup = filepath.Join(ownCgroup(t), "tsugiki-"+c.name)
	args := append([]string{"run", "--run-dir", c.runDir, "--name", c.name}, flags...)
	args = append(append(args, "--"), program...)
	t.Cleanup(func() {
		if t.Failed() { // what is left is not the next test's
			removeCgroup(t, c.cgroup)
		}
	})
	c.held = hold(t, command(t, host, tsugiki, args...), until)
	c.note(t)
	return c
}

// note remembers the container's parts.
func (c *container) note(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir(c.cgroup, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		c.pids = append(c.pids, members(path)...)
		c.programs = append(c.programs, attached(path)...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.pids) < 2 || len(c.programs) == 0 {
		t.Fatalf("found the processes %v and the kernel programs %v: not all", c.pids, c.programs)
	}
	// A network namespace has no name by which to ask whether it is gone, but
	// its links go with it, and their peers with them.
	c.link = fmt.Sprintf("t%d", c.Process.Pid)
	succeed(t, command(t, c.host, "ip", "link", "add", c.link, "type", "veth",
		"peer", "name", "peer", "netns", strconv.Itoa(c.program())))
}

// program is the process id of what tsugiki runs.
func (c *container) program() int {
	for _, pid := range c.pids {
		if parent(pid) == c.Process.Pid && !strings.HasPrefix(comm(pid), "tsugiki") {
			return pid
		}
	}
	return 0
}

// helpers are the processes that serve the program.
func (c *container) helpers() []int {
	return slices.DeleteFunc(slices.Clone(c.pids), func(pid int) bool {
		return !strings.HasPrefix(comm(pid), "tsugiki")
	})
}

// attached are the kernel programs of a cgroup.
func attached(dir string) []ebpf.ProgramID {
	f, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	var ids []ebpf.ProgramID
	for at := range ebpf.AttachType(64) {
		r, err := link.QueryPrograms(link.QueryOptions{Target: int(f.Fd()), Attach: at})
		if err != nil {
			continue // not one of cgroups
		}
		for _, p := range r.Programs {
			ids = append(ids, p.ID)
		}
	}
	return ids
}

// socketsOf counts the sockets of a namespace.
func socketsOf(t *testing.T, ns *testkit.Namespace) int {
	t.Helper()
	used := 0
	if _, err := fmt.Sscanf(readIn(t, ns, "/proc/thread-self/net/sockstat"), "sockets: used %d", &used); err != nil {
		t.Fatal(err)
	}
	return used
}

// readIn reads a file of proc as a thread in a namespace sees it.
func readIn(t *testing.T, ns *testkit.Namespace, path string) string {
	t.Helper()
	var content []byte
	err := ns.Do(func() (err error) {
		content, err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// dead returns an error while there is something of the container that can do
// something: a process, a socket on the host, or its namespace.
func (c *container) dead(t *testing.T) error {
	for _, pid := range c.pids {
		if state(pid) != 0 {
			cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			return fmt.Errorf("process %d lives: %q", pid, cmdline)
		}
	}
	// Not by ip(8), whose own sockets the kernel frees later.
	if strings.Contains(readIn(t, c.host, "/proc/thread-self/net/dev"), c.link+":") {
		return errors.New("the container's network namespace is there")
	}
	if n := socketsOf(t, c.host); n > c.sockets {
		return fmt.Errorf("the host has %d sockets, had %d", n, c.sockets)
	}
	return nil
}

// gone returns an error while there is anything of the container.
func (c *container) gone(t *testing.T) error {
	if err := c.dead(t); err != nil {
		return err
	}
	if _, err := os.Stat(c.cgroup); err == nil {
		return fmt.Errorf("cgroup %s is there", c.cgroup)
	}
	left, err := os.ReadDir(c.runDir)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("run directory: %v", left)
	}
	if _, err := os.Stat("/sys/fs/bpf/tsugiki"); err == nil {
		return nil // where programs are pinned, they stay; see TestProgramsEndWithContainer
	}
	return programsEnded(c.programs)
}

// programsEnded returns an error while the kernel has one of some programs.
func programsEnded(ids []ebpf.ProgramID) error {
	for _, id := range ids {
		if p, err := ebpf.NewProgramFromID(id); err == nil {
			p.Close()
			return fmt.Errorf("kernel program %d is there", id)
		}
	}
	return nil
}

// waitEnd waits until tsugiki has ended, however, and fails the test if it does
// not.
func (c *container) waitEnd(t *testing.T) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		for c.lines.Scan() { // Wait is not to be called before all is read
			c.said = append(c.said, c.lines.Text())
		}
		_ = c.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(testkit.Patience):
		_ = unix.Kill(c.Process.Pid, unix.SIGKILL)
		<-ended
		t.Errorf("tsugiki did not end within %v", testkit.Patience)
	}
}

// sweep runs the next container of a run directory, which cleans up after those
// that were killed.
func (c *container) sweep(t *testing.T) {
	t.Helper()
	succeed(t, command(t, c.host, tsugiki, "run", "--run-dir", c.runDir, "--", "true"))
}
