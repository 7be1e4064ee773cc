package testkit

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"sync"
	"syscall"
)

// Cmd is an exec.Cmd that runs in a namespace. Its methods take the place of
// those of exec.Cmd; pipes, environment and the rest are set as there.
type Cmd struct {
	*exec.Cmd
	ns *Namespace

	wait    sync.Once
	waitErr error
}

// Command prepares a program to be run in the namespace. Mounts stay as they
// are (ip netns exec would remount /sys and hide the cgroup hierarchies).
//
// The program is killed when ctx ends, when the topology is closed, and when
// the process that built the topology dies in whatever way. Set
// SysProcAttr.Pdeathsig for a gentler signal in the last case.
func (n *Namespace) Command(ctx context.Context, name string, args ...string) *Cmd {
	c := exec.CommandContext(ctx, name, args...)
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	c.WaitDelay = Patience // a child of the command may hold its output open
	return &Cmd{Cmd: c, ns: n}
}

// Start starts the command in its namespace.
func (c *Cmd) Start() error {
	n := c.ns
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return errClosed
	}
	done := make(chan error, 1)
	n.starts <- func() { done <- c.Cmd.Start() }
	if err := <-done; err != nil {
		return err
	}
	n.running[c] = struct{}{}
	return nil
}

// Wait waits for the command to end. Unlike that of exec.Cmd it may be called
// by several goroutines and more than once; all get the same answer.
func (c *Cmd) Wait() error {
	c.wait.Do(func() {
		c.waitErr = c.Cmd.Wait()
		c.ns.mu.Lock()
		delete(c.ns.running, c)
		c.ns.mu.Unlock()
	})
	return c.waitErr
}

// Run starts the command and waits for it.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Output runs the command and returns what it printed. As with exec.Cmd, the
// end of standard error is in the ExitError unless Stderr is set.
func (c *Cmd) Output() ([]byte, error) {
	if c.Stdout != nil {
		return nil, errors.New("run command: Stdout already set")
	}
	var stdout, stderr bytes.Buffer
	c.Stdout = &stdout
	capture := c.Stderr == nil
	if capture {
		c.Stderr = &stderr
	}
	err := c.Run()
	var exit *exec.ExitError
	if capture && errors.As(err, &exit) {
		exit.Stderr = stderr.Bytes()
	}
	return stdout.Bytes(), err
}

// CombinedOutput runs the command and returns standard output and standard
// error together.
func (c *Cmd) CombinedOutput() ([]byte, error) {
	if c.Stdout != nil || c.Stderr != nil {
		return nil, errors.New("run command: Stdout or Stderr already set")
	}
	var both bytes.Buffer
	c.Stdout, c.Stderr = &both, &both
	err := c.Run()
	return both.Bytes(), err
}
