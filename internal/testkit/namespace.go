package testkit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/sys/proc"
)

// errClosed is what a command gets whose namespace's topology is closed.
var errClosed = errors.New("topology is closed")

// A locked thread ends with its goroutine, except the process's main thread,
// which the runtime parks instead: it would stay in the namespace that it has
// entered, and /proc/self/ns/net would name that one. Locked during init, the
// main goroutine keeps the main thread to itself.
func init() { runtime.LockOSThread() }

// Namespace is one network namespace of a topology.
type Namespace struct {
	name string
	ns   *netns.NS

	// starts is served by one thread that stays in the namespace until close.
	// Commands are forked from it, because the kernel sends the parent-death
	// signal when the forking thread ends, not when the process does.
	starts chan func()
	ended  chan struct{} // closed when that thread is about to end

	mu      sync.Mutex // guards the fields below
	running map[*Cmd]struct{}
	closed  bool
}

func newNamespace(name string, o Options) (*Namespace, error) {
	inner, err := netns.New()
	if err != nil {
		return nil, fmt.Errorf("make namespace %s: %w", name, err)
	}
	n := &Namespace{
		name:    name,
		ns:      inner,
		starts:  make(chan func()),
		ended:   make(chan struct{}),
		running: make(map[*Cmd]struct{}),
	}
	ready := make(chan error, 1)
	go n.serveStarts(ready)
	if err := <-ready; err != nil {
		return nil, errors.Join(err, inner.Close())
	}
	sysctls := [][2]string{
		{"net.ipv6.conf.all.accept_dad", "0"},
		{"net.ipv6.conf.default.accept_dad", "0"},
	}
	if o.CongestionControl != "" {
		sysctls = append(sysctls, [2]string{"net.ipv4.tcp_congestion_control", o.CongestionControl})
	}
	for _, s := range sysctls {
		if err := n.SetSysctl(s[0], s[1]); err != nil {
			return nil, errors.Join(needsCongestionControl(err, o), n.close())
		}
	}
	return n, nil
}

// needsCongestionControl explains that only the initial namespace may use an
// algorithm that is not on the machine's list of allowed ones.
func needsCongestionControl(err error, o Options) error {
	if o.CongestionControl != "" && (errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOENT)) {
		return &NeedsError{fmt.Sprintf("%s in net.ipv4.tcp_allowed_congestion_control", o.CongestionControl)}
	}
	return err
}

// AllowedCongestionControls lists what Options.CongestionControl can be on
// this machine.
func AllowedCongestionControls() ([]string, error) {
	list, err := os.ReadFile(sysctlPath("net.ipv4.tcp_allowed_congestion_control"))
	if err != nil {
		return nil, fmt.Errorf("list congestion controls: %w", err)
	}
	return strings.Fields(string(list)), nil
}

// serveStarts runs what comes over n.starts on a thread that is in the
// namespace and ends with it.
func (n *Namespace) serveStarts(ready chan<- error) {
	runtime.LockOSThread() // never unlocked: the thread dies with the goroutine
	defer close(n.ended)
	if err := unix.Setns(int(n.ns.File().Fd()), unix.CLONE_NEWNET); err != nil {
		ready <- fmt.Errorf("enter namespace %s: %w", n.name, err)
		return
	}
	ready <- nil
	for f := range n.starts {
		f()
	}
}

// Name is the name within the topology: h, srv, c1, c2 and so on.
func (n *Namespace) Name() string { return n.name }

// Path names the namespace for other programs (nsenter --net=PATH, tsugiki run
// --netns PATH). It is valid until the topology is closed.
func (n *Namespace) Path() string {
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.ns.File().Fd())
}

// Cookie is the namespace's SO_NETNS_COOKIE.
func (n *Namespace) Cookie() uint64 { return n.ns.Cookie() }

// Do runs f on a thread of its own that is in the namespace. Sockets that f
// makes stay in the namespace; goroutines that it starts do not run there, so
// a net.Dialer with more than one address to try is no good in f.
func (n *Namespace) Do(f func() error) error { return n.ns.Do(f) }

// Sysctl reads a network setting of the namespace, as in
// net.ipv4.tcp_congestion_control.
func (n *Namespace) Sysctl(name string) (string, error) {
	var value []byte
	err := n.Do(func() (err error) {
		value, err = os.ReadFile(sysctlPath(name))
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read sysctl of %s: %w", n.name, err)
	}
	return strings.TrimSpace(string(value)), nil
}

// SetSysctl writes a network setting of the namespace. Names outside net are
// refused: they would be the machine's.
func (n *Namespace) SetSysctl(name, value string) error {
	if !strings.HasPrefix(name, "net.") {
		return fmt.Errorf("set sysctl %s: not a setting of a network namespace", name)
	}
	// The files below /proc/sys/net are those of the namespace of the thread
	// that opens them.
	err := n.Do(func() error { return os.WriteFile(sysctlPath(name), []byte(value), 0) })
	if err != nil {
		return fmt.Errorf("set sysctl of %s to %q: %w", n.name, value, err)
	}
	return nil
}

func sysctlPath(name string) string {
	return filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/"))
}

// close kills and reaps the commands that still run, kills what they left in
// the namespace, and lets go of it.
func (n *Namespace) close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil
	}
	n.closed = true
	var left []*Cmd
	for c := range n.running {
		left = append(left, c)
	}
	n.mu.Unlock()
	for _, c := range left {
		// Either may fail because the command has just ended, which is
		// what is wanted.
		_ = c.Process.Kill()
		_ = c.Wait()
	}
	close(n.starts)
	<-n.ended
	if err := n.killInhabitants(); err != nil {
		return err
	}
	if err := n.ns.Close(); err != nil {
		return fmt.Errorf("close namespace %s: %w", n.name, err)
	}
	return nil
}

// killInhabitants kills the processes that are still in the namespace: children
// of commands, which nothing else ends (workers of a server that was killed).
// Nobody else's process is in it, as it has no name that others would find.
func (n *Namespace) killInhabitants() error {
	var own unix.Stat_t
	if err := unix.Fstat(int(n.ns.File().Fd()), &own); err != nil {
		return fmt.Errorf("identify namespace %s: %w", n.name, err)
	}
	pids, err := proc.All()
	if err != nil {
		return fmt.Errorf("list processes of namespace %s: %w", n.name, err)
	}
	for _, pid := range pids {
		if pid == os.Getpid() || !inNamespace(pid, own) {
			continue
		}
		// The process may end, and its id go to another, at any time: look
		// again when the pidfd says which process it is.
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		if inNamespace(pid, own) {
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) // or it has ended
		}
		unix.Close(fd)
	}
	return nil
}

func inNamespace(pid int, ns unix.Stat_t) bool {
	var st unix.Stat_t
	err := unix.Stat(fmt.Sprintf("/proc/%d/ns/net", pid), &st)
	return err == nil && st.Dev == ns.Dev && st.Ino == ns.Ino
}
