package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/sys/poll"
)

// Attach adds the filter of a program to the container. The container owns the listener from then
// on, unless Attach fails. A pid of 0 says that the process is not known.
func (c *Container) Attach(listener *os.File, pid int) error {
	c.attaching.Add(1)
	err := c.tryAttach(listener, pid)
	if c.attaching.Add(-1); c.Over() {
		go c.owner.Ended() // it ends with the program or with its kill; no gate will say so
	}
	return err
}

// Runs tells whether the container has a gate, or is known to have had one.
func (c *Container) Runs() bool { return c.gates.count() > 0 || c.late.Load() }

// Over tells whether the container has no gate, and none is about to be added.
func (c *Container) Over() bool { return c.attaching.Load() == 0 && !c.Runs() }

// Begun tells whether a first program has entered the container.
func (c *Container) Begun() bool { return c.begun.Load() }

func (c *Container) tryAttach(listener *os.File, pid int) error {
	if poll.HungUp(listener) { // it has waited for us: another process may have the number by now
		c.log.Debug("the program has ended", "pid", pid)
		return listener.Close()
	}
	if err := c.enter(pid); err != nil {
		if !poll.HungUp(listener) {
			return err
		}
		c.log.Debug("the program ended at once", "pid", pid, "err", err)
		return listener.Close()
	}
	if c.gates.serve(listener) {
		return listener.Close() // the sender got no answer, and has sent it again
	}
	err := c.Serve(listener)
	if errors.Is(err, gate.ErrEnded) {
		c.log.Debug("the program ended at once", "pid", pid)
		return listener.Close()
	}
	if err == nil {
		c.changes.Lock()
		defer c.changes.Unlock()
		c.refresh() // not before: until the container has a gate, it has only begun to run
	}
	return err
}

// enter makes the first program's namespace the container's own. Later programs have to be in this
// namespace, as long as they live. A program whose pid is 0 is not checked, and is never the first.
func (c *Container) enter(pid int) error {
	c.changes.Lock()
	defer c.changes.Unlock()
	if c.closing {
		return os.ErrClosed
	}
	if c.late.Load() {
		return errors.New("the container is not taken over yet; the agent's log says why")
	}
	if pid == 0 {
		if c.ownNS == nil {
			return errors.New("a program whose process is not known is not the container's first")
		}
		return nil
	}
	own, err := netns.Open(fmt.Sprintf("/proc/%d/ns/net", pid)) // its number alone may be a name of ip netns
	if c.ownNS == nil {
		if err == nil {
			err = c.enterFirst(own, pid)
		}
		return err
	}
	if err != nil {
		return nil
	}
	if own.Cookie() != c.ownNS.Cookie() {
		err = errors.New("the program is in another network namespace than the container")
	}
	return errors.Join(err, own.Close())
}

func (c *Container) enterFirst(own *netns.NS, pid int) error {
	first, err := OpenProcess(pid)
	if err != nil {
		return errors.Join(err, own.Close())
	}
	if !first.isFiltered() { // it is killed when the container ends
		err := fmt.Errorf("process %d has no seccomp filter, so it is not the container's program", pid)
		return errors.Join(err, own.Close(), first.Close())
	}
	c.ownNS = own
	c.first.Store(first)
	c.begun.Store(true)
	var next State
	remember := func() error {
		next = c.state
		next.PID, next.Started = first.PID, first.started
		return c.owner.Save(next)
	}
	err = inOrder(c.checkOwn, c.shareLoopback, c.forgetAddresses, c.makeEngine, c.reachLoopback, c.serveNames, c.endIdleKeeper, remember)
	if err != nil {
		c.closing = true // half of what other programs would need is missing
		return err
	}
	c.state = next
	c.owner.Entered()
	return nil
}

// endIdleKeeper ends the keeper that has made the relay's sockets. Where sockets are created on the
// host first, most programs never need a keeper.
func (c *Container) endIdleKeeper() error {
	c.host[""].endIdle()
	return nil
}

// adoptSocketsOf returns the directory of the adoption sockets of a container's gates.
func adoptSocketsOf(runDir, name string) string { return filepath.Join(runDir, "gates", name) }

// openAdoptSockets opens the directory of adoption sockets, if the container outlives us.
func (c *Container) openAdoptSockets() error {
	if !c.spec.Outlives {
		return nil
	}
	dir := adoptSocketsOf(c.spec.RunDir, c.spec.Name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make directory of adoption sockets: %w", err)
	}
	var err error
	c.adoptDir, err = os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	return err
}

// newAdoptSocket returns the path of an adoption socket that is not there yet.
func newAdoptSocket(dir *os.File) (string, error) {
	for n := 1; ; n++ {
		path := fmt.Sprintf("/proc/self/fd/%d/%d", dir.Fd(), n)
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			return path, nil
		} else if err != nil {
			return "", fmt.Errorf("find a name for an adoption socket: %w", err)
		}
	}
}
