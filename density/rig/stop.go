package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// Stop kills and removes the container, as engines do. It returns the time from the kill until the
// container was removed with its network and its file system.
func (c *Container) Stop(ctx context.Context) (time.Duration, error) {
	took, err := c.stop(ctx)
	if err != nil {
		return took, fmt.Errorf("stop container %s: %w", c.spec.Name, err)
	}
	return took, nil
}

// stop also removes a container that is only half made.
func (c *Container) stop(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	since := time.Now()
	var errs []error
	if c.created {
		errs = append(errs, c.kill(ctx))
	}
	if c.spec.Network == Bridge && c.net != nil {
		errs = append(errs, c.rig.bridge.Disconnect(ctx, c.link()))
	}
	if c.mounted != "" {
		errs = append(errs, c.rig.unmount(c.mounted))
	}
	if c.spec.Storage == Dir {
		errs = append(errs, os.RemoveAll(c.dir()))
	}
	took := time.Since(since)
	c.close()
	errs = append(errs, os.RemoveAll(c.dir()))
	c.rig.drop(c)
	return took, errors.Join(errs...)
}

// kill kills the container's processes and makes the runtime forget the container. A container that
// never ran is only forgotten, if the runtime knows it.
func (c *Container) kill(ctx context.Context) error {
	if c.process == nil {
		_, _ = c.call(ctx, "delete", "--force", c.spec.Name) // the runtime may not know it
		return nil
	}
	if !c.ended() {
		// The container may end before the kill, which then fails. In that case its end counts.
		_, err := c.call(ctx, "kill", c.spec.Name, "KILL")
		if err != nil && !c.ended() {
			return err
		}
		if err := c.Wait(ctx); err != nil {
			return err
		}
	}
	_, err := c.call(ctx, "delete", c.spec.Name)
	return err
}

// close closes the container's files. Close of the rig removes everything else.
func (c *Container) close() {
	for _, f := range []*os.File{c.process, c.stdout} {
		if f != nil {
			f.Close()
		}
	}
	if c.net != nil {
		c.net.Close()
		c.net = nil
	}
}
