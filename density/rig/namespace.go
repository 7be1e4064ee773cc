package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/sys/thread"
)

// waitDelay limits the wait for the output of a command that has ended while its children still
// hold the pipe.
const waitDelay = 2 * time.Second

var errClosed = errors.New("the rig is closed")

// namespace is a network namespace together with the rig's mount namespace. Its own thread forks
// all commands. A child starts in the namespaces of that thread. The kernel sends a child's
// parent-death signal when the thread that forked it ends, so the thread stays until the namespace
// is closed.
type namespace struct {
	net    *netns.NS
	shared bool // belongs to another namespace, which closes it
	work   chan func()
	ended  chan struct{} // closed when the thread is about to end
	closed chan struct{} // no more work
}

// newNamespace makes a network namespace and a thread in it. The thread's mount namespace is that
// of the file, or a new one if the file is nil.
func newNamespace(mounts *os.File) (*namespace, error) {
	ns, err := netns.New()
	if err != nil {
		return nil, err
	}
	n := &namespace{net: ns}
	if err := n.open(func() error { return enter(ns, mounts) }); err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	return n, nil
}

// without returns the same network namespace with a mount namespace that lacks one mount.
func (n *namespace) without(path string) (*namespace, error) {
	mounts, err := n.mounts()
	if err != nil {
		return nil, err
	}
	defer mounts.Close()
	other := &namespace{net: n.net, shared: true}
	err = other.open(func() error {
		err := enter(n.net, mounts)
		if err == nil {
			err = ownMounts(unix.MS_SLAVE)
		}
		if err == nil {
			err = unix.Unmount(path, unix.MNT_DETACH)
		}
		if err != nil {
			return fmt.Errorf("hide %s: %w", path, err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return other, nil
}

// open starts the namespace's thread.
func (n *namespace) open(enter func() error) error {
	n.work, n.ended, n.closed = make(chan func()), make(chan struct{}), make(chan struct{})
	ready := make(chan error)
	go func() {
		if err := thread.Do(func() error { return n.serve(enter, ready) }); err != nil {
			ready <- err
		}
	}()
	return <-ready
}

// serve runs the namespace's work on its thread until Close. It returns the error of enter.
func (n *namespace) serve(enter func() error, ready chan<- error) error {
	defer close(n.ended)
	if err := enter(); err != nil {
		return err
	}
	ready <- nil
	for {
		select {
		case fn := <-n.work:
			fn()
		case <-n.closed:
			return nil
		}
	}
}

// enter moves the calling thread into the namespaces. An unmount on the machine also happens here,
// but mounts and unmounts here stay here (MS_SLAVE).
func enter(ns *netns.NS, mounts *os.File) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("make mount namespace: %w", err)
	}
	if mounts != nil {
		if err := unix.Setns(int(mounts.Fd()), unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("enter mount namespace: %w", err)
		}
	} else if err := ownMounts(unix.MS_SLAVE, unix.MS_SHARED); err != nil {
		return err
	}
	return unix.Setns(int(ns.File().Fd()), unix.CLONE_NEWNET)
}

// ownMounts moves the calling thread into a new mount namespace.
func ownMounts(propagation ...uintptr) error {
	err := unix.Unshare(unix.CLONE_NEWNS)
	for _, p := range propagation {
		if err == nil {
			err = unix.Mount("", "/", "", p|unix.MS_REC, "")
		}
	}
	if err != nil {
		return fmt.Errorf("make mount namespace: %w", err)
	}
	return nil
}

// do runs fn on the namespace's thread.
func (n *namespace) do(fn func() error) error {
	done := make(chan error, 1)
	select {
	case n.work <- func() { done <- fn() }:
		return <-done
	case <-n.closed:
		return errClosed
	}
}

// mounts opens the mount namespace.
func (n *namespace) mounts() (f *os.File, err error) {
	err = n.do(func() error {
		f, err = os.Open("/proc/thread-self/ns/mnt")
		return err
	})
	return f, err
}

// close ends the thread, which kills the commands that it has started, and closes the namespaces.
func (n *namespace) close() error {
	close(n.closed)
	<-n.ended
	if n.shared {
		return nil
	}
	return n.net.Close()
}

// command prepares a program that runs in a namespace, as one of the rig's own processes. The
// program is killed when ctx ends and when this process ends. A Ctrl-C on the terminal does not
// reach it.
func (r *Rig) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, name, args...)
	c.Env = os.Environ()
	c.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true, Pdeathsig: unix.SIGKILL, UseCgroupFD: true, CgroupFD: int(r.helpers.Fd()),
	}
	c.WaitDelay = waitDelay
	return c
}

// start starts a command in the namespace.
func (n *namespace) start(c *exec.Cmd) error { return n.do(c.Start) }

// output runs a command in the namespace and returns its output. An error contains its error
// output.
func (n *namespace) output(ctx context.Context, c *exec.Cmd) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	err := n.start(c)
	if err == nil {
		err = c.Wait()
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return stdout.Bytes(), fmt.Errorf("%s: %w%s", strings.Join(c.Args, " "), err, complaint(stderr.Bytes()))
	}
	return stdout.Bytes(), nil
}

// complaint returns the end of a program's error output, to append to an error.
func complaint(said []byte) string {
	lines := strings.Split(strings.TrimSpace(string(said)), "\n")
	if last := strings.Join(lines[max(0, len(lines)-4):], "; "); last != "" {
		return ": " + last
	}
	return ""
}

// Host runs a program in the namespace that stands for the host, and returns its output. The
// program is killed when ctx ends.
func (r *Rig) Host(ctx context.Context, args ...string) ([]byte, error) {
	return r.host.output(ctx, r.command(ctx, args[0], args[1:]...))
}

// Bridged runs a program in the namespace of the host with the bridge, and returns its output. The
// program is killed when ctx ends.
func (r *Rig) Bridged(ctx context.Context, args ...string) ([]byte, error) {
	return r.bridged.output(ctx, r.command(ctx, args[0], args[1:]...))
}

// Outside runs a program in the namespace of the remote side, and returns its output. The program
// is killed when ctx ends.
func (r *Rig) Outside(ctx context.Context, args ...string) ([]byte, error) {
	return r.remote.output(ctx, r.command(ctx, args[0], args[1:]...))
}

// ServeOutside starts a server in the namespace of the remote side, and waits until the server
// listens on a TCP port there. The server is killed with the rig.
func (r *Rig) ServeOutside(ctx context.Context, port uint16, args ...string) error {
	at := netip.AddrPortFrom(remoteAddr.Addr(), port)
	cmd := r.command(context.WithoutCancel(ctx), args[0], args[1:]...)
	if err := r.remote.start(cmd); err != nil {
		return fmt.Errorf("start server %s: %w", args[0], err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // killed with the rig
		close(ended)
	}()
	err := r.remote.net.Do(func() error {
		return dial(ctx, at.String(), func() bool {
			select {
			case <-ended:
				return true
			default:
				return false
			}
		})
	})
	if err != nil {
		err = fmt.Errorf("start server %s: %w", args[0], err)
	}
	return err
}

// DialOutside connects from the remote side to an address, as soon as a program listens there.
func (r *Rig) DialOutside(ctx context.Context, address string) error {
	return r.remote.net.Do(func() error { return dial(ctx, address, func() bool { return false }) })
}
