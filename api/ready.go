package api

import (
	"context"
	"fmt"
	"time"
)

// readyInterval is between two questions whether the daemon answers.
const readyInterval = 2 * time.Millisecond

// AwaitReady waits until the daemon answers. It has adopted the containers of the daemon
// before it by then. Who knows that the daemon has ended, ends ctx with that cause.
func (c *Client) AwaitReady(ctx context.Context) error {
	tick := time.NewTicker(readyInterval)
	defer tick.Stop()
	for {
		_, err := c.Containers()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for the agent: %w: %w", context.Cause(ctx), err)
		}
	}
}
