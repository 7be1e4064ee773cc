package vsock

import (
	"sync/atomic"

	"github.com/tsugiki/tsugiki/internal/cputime"
)

// Counters count what the connections of a guest have done. They go on when the guest boots again, if
// its next Guest gets them too. The zero value is ready.
type Counters struct {
	Opened, Dialed     atomic.Uint64 // connections that the guest opened, and that the host did
	FromGuest, ToGuest atomic.Uint64 // bytes
	Resets             atomic.Uint64 // connections that ended before both sides had said so
	Open               atomic.Int64  // connections that are open now
}

// Begin counts a connection. Open is for the caller to lower at its end.
func (c *Counters) Begin(dialed bool) {
	if dialed {
		c.Dialed.Add(1)
	} else {
		c.Opened.Add(1)
	}
	c.Open.Add(1)
}

// Observe has a device count into counters, and its thread's CPU time into work, which may be nil. It is
// called by the function that Serve calls.
func (d *Device) Observe(c *Counters, work *cputime.Meter) { d.counts, d.meter = c, work }
