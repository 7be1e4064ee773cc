// Package charge lets a daemon charge its own CPU time to containers. The node's agent takes the
// CPU time between Begin and End out of the container's CPU quota.
//
//	w := charge.Begin("web-1")
//	compress(request)
//	w.End()
//
// The package owns only the charges that are not sent yet. The agent enforces them. Begin and End
// never block. Each reads the thread's CPU clock once and the thread's id once. A goroutine in the
// background sends the charges about every 50 ms. While no agent listens, the package keeps up to
// an hour of CPU time for each container. Lost reports the time above that hour, and the time for
// containers that do not exist or cannot be charged.
//
// The agent accepts charges only from root with CAP_NET_ADMIN. Any kernel that the agent supports
// is enough.
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
	// sendInterval is the time for which charges are collected before they are sent. It is shorter
	// than a usual quota period, so the agent takes the charges from the next period.
	sendInterval = 50 * time.Millisecond
	// retryMax is the longest time between two attempts to reach an agent.
	retryMax = 2 * time.Second
	// containersMax limits the number of containers with pending charges.
	containersMax = 4096
)

// Errors of End and Add. Any other error of theirs names the value that is refused.
var (
	// ErrEnded says that End was called before. The second call charges nothing.
	ErrEnded = errors.New("charge: End was called before")
	// ErrThread says that another goroutine than the caller of Begin called End. Nothing is
	// charged, and the measurement continues.
	ErrThread = errors.New("charge: End was called by another goroutine than Begin")
)

// Default is the client that the functions of this package use. It sends to the agent at
// api.DefaultSocket.
var Default = New("")

// Begin calls Default.Begin.
func Begin(container string) *Work { return Default.Begin(container) }

// Add calls Default.Add.
func Add(container string, d time.Duration) error { return Default.Add(container, d) }

// Flush calls Default.Flush.
func Flush(ctx context.Context) error { return Default.Flush(ctx) }

// Lost calls Default.Lost.
func Lost() time.Duration { return Default.Lost() }

// Client sends charges to an agent. Several goroutines may use a Client at the same time.
type Client struct {
	// Source is the name under which the time is shown. api.CheckSource says which names are
	// allowed. The empty string means api.SourceDefault. Set Source before the first call.
	Source string

	agent *api.Client
	turn  chan struct{} // a semaphore: the goroutine that sends holds it

	mu      sync.Mutex
	pending map[string]time.Duration // guarded by mu; each value is more than 0
	lost    time.Duration            // guarded by mu
	running bool                     // guarded by mu: run is active
}

// New makes a client for the agent at a socket. The empty string means api.DefaultSocket. A Client
// needs no Close.
func New(socket string) *Client {
	return &Client{agent: api.Dial(socket), turn: make(chan struct{}, 1), pending: map[string]time.Duration{}}
}

// Add charges a container for CPU time that the caller measured by other means. It refuses a name
// that no container can have. It refuses a time of 0 or less, and a time of more than
// api.ChargeMax. It does not check whether the container exists.
func (c *Client) Add(container string, d time.Duration) error {
	if err := api.CheckChargeTarget(container); err != nil {
		return err
	}
	if err := api.CheckSource(c.Source); err != nil {
		return err
	}
	if d <= 0 || d > api.ChargeMax {
		return fmt.Errorf("charge %s: %v: a charge is more than 0 and at most %v", container, d, api.ChargeMax)
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

// keep adds to the pending charges, within their limits. The caller holds mu.
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

// Lost returns the CPU time that was not charged: the container does not exist or the agent cannot
// charge it, no agent was there for too long, or the agent ended before it answered.
func (c *Client) Lost() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

// run sends the pending charges until none are left.
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

// Flush sends the pending charges. Call it before the program ends. The charges that the agent did
// not take stay pending, unless they are lost: run sends them later. The same is true if ctx ends
// first.
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

// send sends all pending charges. The caller holds turn.
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
			// The agent may have charged the batch. Sending the batch again could charge it twice.
			c.lose(batch)
			return fmt.Errorf("charge: %w", err)
		}
	}
}

// take removes a batch from the pending charges and returns it.
func (c *Client) take() []api.Charge {
	c.mu.Lock()
	defer c.mu.Unlock()
	batch := make([]api.Charge, 0, min(len(c.pending), api.ChargesMax))
	for container, d := range c.pending {
		if len(batch) == api.ChargesMax {
			break
		}
		// The agent takes whole microseconds. Rounding to the nearest makes the sum right over
		// time.
		if us := d.Round(time.Microsecond).Microseconds(); us > 0 {
			batch = append(batch, api.Charge{Container: container, Source: c.Source, Microseconds: us})
		}
		delete(c.pending, container)
	}
	return batch
}

// putBack makes a batch pending again that was not charged, except for the containers in but: their
// time is lost.
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
