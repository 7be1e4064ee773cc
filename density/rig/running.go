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

// Name is that of its Spec.
func (c *Container) Name() string { return c.spec.Name }

// Started is how long it took to start: from making its file system and its network,
// as an engine would have to, until its program was up.
func (c *Container) Started() time.Duration { return c.started }

// PID is the first process, as the machine numbers it.
func (c *Container) PID() int { return c.pid }

// Cgroup is the path of its group below the mount of each hierarchy, with a slash first.
func (c *Container) Cgroup() string { return "/" + c.rig.name() + "/" + c.spec.Name }

// Address is where one of its Ports is reached from the remote side and from the host,
// of a container behind a bridge from the host that has it, as ADDR:PORT; of a container
// with network None it is that in itself.
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

// Line reads the next line of what the program prints, after that of Spec.Ready. At the
// end it is io.EOF. A program that prints much is held up until it is read.
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
		return "", fmt.Errorf("container %s says nothing: %w%s", c.spec.Name, err, c.said())
	}
	return strings.TrimSuffix(line, "\n"), nil
}

// Exec runs a program in the container, by the runtime, and returns what it printed. An
// error has what it complained of.
func (c *Container) Exec(ctx context.Context, args ...string) ([]byte, error) {
	return c.call(ctx, append([]string{"exec", c.spec.Name}, args...)...)
}

// Wait waits until the container's first process has ended.
func (c *Container) Wait(ctx context.Context) error {
	ended := make(chan struct{})
	go func() {
		pidfd.Await(c.process) // returns also when Stop closes the file
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the end of container %s: %w", c.spec.Name, ctx.Err())
	}
}
