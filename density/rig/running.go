package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/tsugiki/tsugiki/internal/sys/pidfd"
)

// Name returns the name in the container's Spec.
func (c *Container) Name() string { return c.spec.Name }

// Started returns how long the start took: from making the file system and the network, as an
// engine must, until the program was up.
func (c *Container) Started() time.Duration { return c.started }

// PID returns the pid of the first process in the machine's pid namespace.
func (c *Container) PID() int { return c.pid }

// Cgroup returns the path of the container's group below the mount of each hierarchy. It starts
// with a slash.
func (c *Container) Cgroup() string { return "/" + c.rig.name() + "/" + c.spec.Name }

// Address returns the ADDR:PORT of one of the container's Ports. The remote side and the host reach
// it there. For a container behind a bridge the host is the one with the bridge. For a container
// with network None the address is valid only inside it.
func (c *Container) Address(port uint16) string {
	if c.spec.Network == None {
		return fmt.Sprintf("127.0.0.1:%d", port)
	}
	host := hostAddr
	if c.spec.Network == Bridge {
		host = bridgedAddr
	}
	return fmt.Sprintf("%s:%d", host.Addr(), c.hostPorts[port])
}

// Line returns the next line of the program's output after Spec.Ready. At the end of the output it
// returns io.EOF. A program that prints much blocks until its output is read.
func (c *Container) Line(ctx context.Context) (string, error) {
	if c.lines == nil {
		return "", fmt.Errorf("container %s has another output", c.spec.Name)
	}
	if err := c.stdout.SetReadDeadline(time.Time{}); err != nil {
		return "", err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.stdout.SetReadDeadline(time.Now()) })
	defer stop()
	line, err := c.lines.ReadString('\n')
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if err != nil && (line == "" || !errors.Is(err, io.EOF)) {
		return "", fmt.Errorf("read the output of container %s: %w%s", c.spec.Name, err, c.said())
	}
	return strings.TrimSuffix(line, "\n"), nil
}

// Exec runs a program in the container with the runtime, and returns its output. An error contains
// the program's error output.
func (c *Container) Exec(ctx context.Context, args ...string) ([]byte, error) {
	return c.call(ctx, append([]string{"exec", c.spec.Name}, args...)...)
}

// Wait waits until the container's first process has ended.
func (c *Container) Wait(ctx context.Context) error {
	ended := make(chan struct{})
	go func() {
		pidfd.Await(c.process) // also returns when Stop closes the file
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the end of container %s: %w", c.spec.Name, ctx.Err())
	}
}
