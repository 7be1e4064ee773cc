// Package charge is for daemons that measure what they do for containers: the CPU time
// between Begin and End is taken out of the container's CPU quota by the node's agent.
//
//	w := charge.Begin("web-1")
//	compress(request)
//	w.End()
//
// It owns the time that is not sent yet, and nothing else: enforcement is the agent's.
// Begin and End cost two readings of the thread's CPU clock and two of its number, and
// never wait. What has come together is sent about every 50 ms, in the background. While
// no agent listens it is kept, up to an hour of CPU time for each container; what is
// beyond that, or is for containers that there are not, is lost, as Lost says.
//
// The agent listens to root with CAP_NET_ADMIN. A kernel that it runs on will do.
package charge

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tsugiki/tsugiki/api"
)

const (
	// sendInterval is how long charges come together. It is shorter than a usual
	// period of quotas, so that they are taken from the next.
	sendInterval = 50 * time.Millisecond
	// retryMax is the longest time between two looks for an agent.
	retryMax = 2 * time.Second
	// containersMax bounds what is kept without an agent.
	containersMax = 4096
)

// Errors of End and Add; others say which value they refuse.
var (
	// ErrEnded says that End was called before: nothing is charged again.
	ErrEnded = errors.New("charge: work has ended before")
	// ErrThread says that End was called by another goroutine than Begin. Nothing is
	// charged, and the work goes on.
	ErrThread = errors.New("charge: work is ended by another goroutine than began it")
)

// Default is the client of the functions of this package. Its agent is that of
// api.DefaultSocket.
var Default = New("")

// Begin is Default's.
func Begin(container string) *Work { return Default.Begin(container) }

// Add is Default's.
func Add(container string, d time.Duration) error { return Default.Add(container, d) }

// Flush is Default's.
func Flush(ctx context.Context) error { return Default.Flush(ctx) }

// Lost is Default's.
func Lost() time.Duration { return Default.Lost() }

// Client sends charges to an agent. All of it may be used by several goroutines.
type Client struct {
	// Source is what the time is shown as spent by, as api.CheckSource allows; empty
	// is api.SourceDefault. It is set before the first use.
	Source string

	agent *api.Client
	turn  chan struct{} // held by who sends

	mu      sync.Mutex
	pending map[string]time.Duration // guarded by mu; more than 0
	lost    time.Duration            // guarded by mu
	running bool                     // guarded by mu: somebody sends what is pending
}

// New makes a client for the agent at a socket, "" being api.DefaultSocket. There is
// nothing to close.
func New(socket string) *Client {
	return &Client{agent: api.Dial(socket), turn: make(chan struct{}, 1), pending: map[string]time.Duration{}}
}

// Add charges a container CPU time that was measured otherwise. It refuses names that
// no container has, and times that are not more than 0 or are longer than
// api.ChargeMax; it does not look for the container.
func (c *Client) Add(container string, d time.Duration) error {
	if err := api.CheckChargeTarget(container); err != nil {
		return err
	}
	if err := api.CheckSource(c.Source); err != nil {
		return err
	}
	if d <= 0 || d > api.ChargeMax {
		return fmt.Errorf("charge %s: %v: it takes more than 0 and at most %v", container, d, api.ChargeMax)
	}
	c.add(container, d)
	return nil
}

func (c *Client) add(container string, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keep(container, d)
	if !c.running {
		c.running = true
		go c.run()
	}
}

// keep adds to what is pending, within bounds. Called with mu.
func (c *Client) keep(container string, d time.Duration) {
	before, found := c.pending[container]
	if !found && len(c.pending) >= containersMax {
		c.lost += d
		return
	}
	after := min(before+d, api.ChargeMax)
	c.lost += before + d - after
	c.pending[container] = after
}

// Lost is the CPU time that was never charged: for containers that there are not, or
// as no agent was there for too long, or as it ended before it had answered.
func (c *Client) Lost() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

// run sends what comes together until nothing more does.
func (c *Client) run() {
	wait := sendInterval
	for {
		time.Sleep(wait)
		wait = sendInterval
		if err := c.Flush(context.Background()); err != nil {
			wait = retryMax
		}
		c.mu.Lock()
		if len(c.pending) == 0 {
			c.running = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
	}
}

// Flush sends what is pending, before a program ends. What was not taken goes on to be
// sent in the background, unless it is lost; also when ctx ends first.
func (c *Client) Flush(ctx context.Context) error {
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	sent := make(chan error, 1)
	go func() {
		sent <- c.send()
		<-c.turn
	}()
	select {
	case err := <-sent:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// send sends all that is pending. Called by who has the turn.
func (c *Client) send() error {
	var failed error
	for {
		batch := c.take()
		if len(batch) == 0 {
			return failed
		}
		err := c.agent.ChargeBatch(batch)
		var unknown *api.UnknownError
		switch {
		case err == nil:
		case errors.As(err, &unknown):
			c.putBack(batch, unknown.Containers)
			failed = fmt.Errorf("charge: %w", err)
		case errors.Is(err, api.ErrRefused):
			c.putBack(batch, nil)
			return fmt.Errorf("charge: %w", err)
		default:
			// It may have been charged: not twice.
			c.lose(batch)
			return fmt.Errorf("charge: %w", err)
		}
	}
}

// take takes a batch of what is pending.
func (c *Client) take() []api.Charge {
	c.mu.Lock()
	defer c.mu.Unlock()
	batch := make([]api.Charge, 0, min(len(c.pending), api.ChargesMax))
	for container, d := range c.pending {
		if len(batch) == api.ChargesMax {
			break
		}
		// The nearest of what can be sent: over time they add up to what was spent.
		if us := d.Round(time.Microsecond).Microseconds(); us > 0 {
			batch = append(batch, api.Charge{Container: container, Source: c.Source, Microseconds: us})
		}
		delete(c.pending, container)
	}
	return batch
}

// putBack keeps a batch that was not charged for the next time, but for some of its
// containers.
func (c *Client) putBack(batch []api.Charge, but []string) {
	gone := make(map[string]bool, len(but))
	for _, name := range but {
		gone[name] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range batch {
		if gone[batch[i].Container] {
			c.lost += batch[i].Duration()
		} else {
			c.keep(batch[i].Container, batch[i].Duration())
		}
	}
}

func (c *Client) lose(batch []api.Charge) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range batch {
		c.lost += batch[i].Duration()
	}
}
