package api

import (
	"context"
	"fmt"
	"time"
)

// readyInterval is the time between two attempts to reach the daemon.
const readyInterval = 2 * time.Millisecond

// AwaitReady waits until the daemon answers. By then it has adopted the containers of the former
// daemon. A caller that learns that the daemon has ended cancels ctx with that cause.
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
