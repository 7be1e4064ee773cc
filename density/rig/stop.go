package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// Stop kills the container and removes it, as engines do, and says how long that took:
// from the kill until it was removed with its network and its file system.
func (c *Container) Stop(ctx context.Context) (time.Duration, error) {
	took, err := c.stop(ctx)
	if err != nil {
		return took, fmt.Errorf("stop container %s: %w", c.spec.Name, err)
	}
	return took, nil
}

// stop also removes what was only half made.
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

// kill kills the container's processes and has the runtime forget it. One that never
// ran is only forgotten, if it is known.
func (c *Container) kill(ctx context.Context) error {
	if c.process == nil {
		_, _ = c.call(ctx, "delete", "--force", c.spec.Name) // it may never have been made
		return nil
	}
	if !c.ended() {
		// It may end before it is killed: then this fails, and that it has ended counts.
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

// close closes what the container has open. What else there is of it goes with the
// rig.
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
