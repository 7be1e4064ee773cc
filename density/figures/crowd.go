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

// barrierInside is the barrier's path in the containers of a crowd.
const barrierInside = "/run/barrier"

// arriveLimit is the time within which all programs must arrive at the barrier. On slow machines
// each takes some tenths of a second.
const arriveLimit = 10 * time.Minute

// runLimit is the time limit of the programs. It is far above the time that any of them takes.
const runLimit = 30 * time.Minute

// crowd is a set of containers that run the same program at the same time.
type crowd struct {
	env     *sweep.Env
	spec    func(i int) rig.Spec
	members []*rig.Container
	limited bool   // they have quotas
	file    string // of the barrier
	barrier *load.Barrier
}

// gather starts n containers with the barrier mounted. If one fails, it stops the others.
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

// disperse stops the containers. After an interrupt of the sweep it does nothing: the rig's end is
// faster.
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

// each calls f for 0 to n-1, on as many goroutines as there are CPUs. After an error it starts no
// more calls.
func each(n int, f func(i int) error) error {
	var (
		mu     sync.Mutex // guards the variables below
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

// runner runs a program at the barrier and returns its output.
type runner func(ctx context.Context, args ...string) ([]byte, error)

// runners returns one runner for each container.
func (c *crowd) runners() []runner {
	var list []runner
	for _, m := range c.members {
		list = append(list, func(ctx context.Context, args ...string) ([]byte, error) {
			return m.Exec(ctx, inside(load.At(barrierInside, args...))...)
		})
	}
	return list
}

// onHost returns a runner on the host.
func (c *crowd) onHost(loader string) runner {
	return func(ctx context.Context, args ...string) ([]byte, error) {
		return c.env.Rig.Host(ctx, append([]string{loader}, load.At(c.file, args...)...)...)
	}
}

// together runs a program in each runner at the same time. It returns their outputs, and the
// machine's counters meanwhile.
func (c *crowd) together(ctx context.Context, where []runner, args func(i int) []string) ([][]byte, map[string]float64, error) {
	ctx, stop := context.WithTimeoutCause(ctx, runLimit, errors.New("the programs do not end"))
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

// watch observes the machine and the quotas of the containers.
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
