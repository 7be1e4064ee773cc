package figures

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tsugiki/tsugiki/density/load"
	"github.com/tsugiki/tsugiki/density/rig"
	"github.com/tsugiki/tsugiki/density/sweep"
)

// barrierInside is where containers of a crowd have the barrier.
const barrierInside = "/run/barrier"

// arriveLimit is how long programs may take until all are at the barrier: some tenths
// of a second each, on slow machines.
const arriveLimit = 10 * time.Minute

// runLimit is how long programs may take, far above what any does.
const runLimit = 30 * time.Minute

// crowd is some containers that do the same at the same time.
type crowd struct {
	env     *sweep.Env
	spec    func(i int) rig.Spec
	members []*rig.Container
	limited bool   // they have quotas
	file    string // of the barrier
	barrier *load.Barrier
}

// gather starts n containers, which have the barrier mounted. It leaves none if one
// does not start.
func gather(ctx context.Context, e *sweep.Env, n int, spec func(i int) rig.Spec) (*crowd, error) {
	c := &crowd{env: e, spec: spec, file: filepath.Join(e.Rig.Dir(), "barrier")}
	var err error
	if c.barrier, err = load.NewBarrier(c.file); err != nil {
		return nil, err
	}
	if err = c.grow(ctx, n); err != nil {
		return nil, errors.Join(err, c.disperse(ctx))
	}
	return c, nil
}

// grow starts containers until there are n.
func (c *crowd) grow(ctx context.Context, n int) error {
	first := len(c.members)
	c.members = append(c.members, make([]*rig.Container, n-first)...)
	var started atomic.Int64
	started.Store(int64(first))
	return each(n-first, func(i int) error {
		s := c.spec(first + i)
		if s.Quota > 0 && first+i == 0 {
			c.limited = true
		}
		s.Mounts = append(s.Mounts, rig.Mount{From: c.file, To: barrierInside})
		m, err := c.env.Rig.Start(ctx, s)
		if err == nil {
			c.members[first+i] = m
			c.env.Say(fmt.Sprintf("%d of %d containers started", started.Add(1), n), 0)
		}
		return err
	})
}

// disperse ends them. When the sweep is interrupted it leaves that to the rig's end,
// which is faster.
func (c *crowd) disperse(ctx context.Context) error {
	err := errors.Join(c.barrier.Close(), os.Remove(c.file))
	if ctx.Err() != nil {
		return err
	}
	return errors.Join(err, each(len(c.members), func(i int) error {
		if c.members[i] == nil {
			return nil
		}
		_, err := c.members[i].Stop(ctx)
		return err
	}))
}

// each calls f for 0 to n-1, as many at a time as there are CPUs to do it. After an
// error nothing more is begun.
func each(n int, f func(i int) error) error {
	var (
		mu     sync.Mutex // guards what follows
		next   int
		failed error
		group  sync.WaitGroup
	)
	take := func() (int, bool) {
		mu.Lock()
		defer mu.Unlock()
		next++
		return next - 1, next <= n && failed == nil
	}
	for range min(n, 2*runtime.NumCPU()) {
		group.Add(1)
		go func() {
			defer group.Done()
			for i, more := take(); more; i, more = take() {
				if err := f(i); err != nil {
					mu.Lock()
					failed = errors.Join(failed, err)
					mu.Unlock()
				}
			}
		}()
	}
	group.Wait()
	return failed
}

// runner runs a program at the barrier and returns what it printed.
type runner func(ctx context.Context, args ...string) ([]byte, error)

// runners are one for each container.
func (c *crowd) runners() []runner {
	var list []runner
	for _, m := range c.members {
		list = append(list, func(ctx context.Context, args ...string) ([]byte, error) {
			return m.Exec(ctx, inside(load.At(barrierInside, args...))...)
		})
	}
	return list
}

// onHost is one on the host.
func (c *crowd) onHost(loader string) runner {
	return func(ctx context.Context, args ...string) ([]byte, error) {
		return c.env.Rig.Host(ctx, append([]string{loader}, load.At(c.file, args...)...)...)
	}
}

// together runs a program in each at the same time, and returns what they printed and
// what the machine was like meanwhile.
func (c *crowd) together(ctx context.Context, where []runner, args func(i int) []string) ([][]byte, map[string]float64, error) {
	ctx, stop := context.WithTimeoutCause(ctx, runLimit, errors.New("programs do not come to an end"))
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out := make([][]byte, len(where))
	var group sync.WaitGroup
	for i, run := range where {
		group.Add(1)
		go func() {
			defer group.Done()
			var err error
			if out[i], err = run(ctx, args(i)...); err != nil {
				cancel(fmt.Errorf("program %d of %d: %w", i+1, len(where), err))
			}
		}()
	}
	arrive, enough := context.WithTimeout(ctx, arriveLimit)
	defer enough()
	err := c.barrier.Await(arrive, len(where))
	if err != nil {
		cancel(err)
	}
	before, watchErr := c.watch()
	err = errors.Join(err, watchErr, c.barrier.Open())
	group.Wait()
	after, watchErr := c.watch()
	if err = errors.Join(err, watchErr); err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, nil, err
	}
	return out, after.since(before), nil
}

// watch looks at the machine and at the quotas of the containers.
func (c *crowd) watch() (observation, error) {
	o, err := observe()
	for _, m := range c.members {
		if err != nil || !c.limited {
			break
		}
		var s rig.Stats
		s, err = m.Stats()
		o.throttled += s.Throttled
		o.throttledFor += s.ThrottledBy
	}
	return o, err
}
