package container

import (
	"sync"

	"github.com/tsugiki/tsugiki/policy"
	"github.com/tsugiki/tsugiki/policy/enforcer"
)

// tracing reads the decisions of the kernel programs about a container's calls.
type tracing struct {
	mu       sync.Mutex // guards what follows
	wanted   bool
	possible bool // the kernel programs decide calls alone
	trace    *enforcer.Trace
}

// Trace makes gates and kernel programs report each decision, or stop doing so.
func (c *Container) Trace(on bool) {
	c.gates.trace(on)
	c.setTracing(func(t *tracing) { t.wanted = on })
}

// setTracing changes t, and then starts or stops the trace.
func (c *Container) setTracing(change func(*tracing)) {
	t := &c.tracing
	t.mu.Lock()
	defer t.mu.Unlock()
	change(t)
	var err error
	switch wanted := t.wanted && t.possible; {
	case wanted && t.trace == nil:
		t.trace, err = c.enforced.Trace(func(list []policy.Decision, lost uint64) {
			c.intercepted.Do(func() { c.engine.LogKernel(list, lost) })
		})
	case !wanted && t.trace != nil:
		err = t.trace.Stop()
		t.trace = nil
	}
	if err != nil {
		c.log.Warn("connects and datagrams are not traced", "err", err)
	}
}
