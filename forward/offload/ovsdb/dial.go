package ovsdb

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// redialInterval is how often Dial looks whether a queue has room. Nothing tells of it.
const redialInterval = 5 * time.Millisecond

// Dial connects to a unix socket of one of Open vSwitch's daemons. A daemon accepts connections
// between two rounds of its main loop, and the socket's queue has room for 64: if it is full, the
// kernel refuses a connection that does not block (EAGAIN, unix(7)). Dial then waits until ctx ends.
func Dial(ctx context.Context, path string) (net.Conn, error) {
	d := &net.Dialer{}
	for {
		conn, err := d.DialContext(ctx, "unix", path)
		if !errors.Is(err, unix.EAGAIN) {
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("too many wait for %s already: %w", path, context.Cause(ctx))
		case <-time.After(redialInterval):
		}
	}
}
