package offload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tsugiki/tsugiki/forward/offload/dpu"
	"github.com/tsugiki/tsugiki/forward/offload/ovsdb"
	"github.com/tsugiki/tsugiki/forward/offload/ports"
)

// session is one connection to the DPU, and controls the switch as long as it lasts. worked tells
// whether flows were installed.
func (c *Controller) session(ctx context.Context) (worked bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := c.enforce(); err != nil {
		return false, err
	}
	healths, err := c.followHealth(ctx)
	if err != nil {
		return false, err
	}
	var health *dpu.Health
	for health == nil || health.Fault != "" { // the database may be away as well
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case h := <-healths:
			if h.err != nil {
				return false, h.err
			}
			health = c.take(health, h.health)
		case c.config = <-c.reloads:
			if err := c.enforce(); err != nil {
				return false, err
			}
		}
	}
	db, monitor, err := c.openDatabase(ctx)
	if err != nil {
		return false, err
	}
	defer db.Close()
	return c.control(ctx, db, monitor, health, healths)
}

// control makes the switch what it has to be, after each change.
func (c *Controller) control(ctx context.Context, db *ovsdb.Client, monitor *ovsdb.Monitor, health *dpu.Health, healths <-chan healthNews) (worked bool, err error) {
	collect := time.NewTicker(collectInterval)
	defer collect.Stop()
	for stale := true; ; {
		if health.Fault == "" {
			t := ports.Read(monitor.Rows)
			if err := c.sync(ctx, db, t, health); err != nil {
				return worked, err
			}
			worked = true
			if stale {
				if err := c.collect(ctx, db, t); err != nil {
					return worked, err
				}
			}
		} else if err := c.enforce(); err != nil {
			return worked, err
		}
		stale = health.Fault != ""
		select {
		case <-ctx.Done():
			return worked, ctx.Err()
		case h := <-healths:
			if h.err != nil {
				return worked, h.err
			}
			health = c.take(health, h.health)
		case c.config = <-c.reloads:
		case <-monitor.News():
		case <-collect.C:
			stale = true
		case has := <-db.Locked(ports.ControllerLock):
			if !has {
				return worked, errors.New("another controller has taken the switch")
			}
		case <-db.Ended():
			return worked, db.Err()
		}
	}
}

// enforce has the policy hold for direct packets, whether the switch works or not.
func (c *Controller) enforce() error { return c.direct.restrict(nil, &c.config.policy) }

// take compares the DPU's health with the last one, and forgets the flows of another generation.
func (c *Controller) take(last, h *dpu.Health) *dpu.Health {
	c.stats.setHealth(h)
	switch {
	case h.Fault != "" && (last == nil || last.Fault != h.Fault):
		c.log.Warn("the switch does not work", "err", h.Fault)
	case h.Fault == "" && (last == nil || last.Fault != ""):
		c.log.Info("the switch works", "generation", h.Generation)
	}
	if last == nil || last.Generation != h.Generation {
		c.installed = nil
	}
	return h
}

// healthNews is a line of the DPU's health, or the end of them.
type healthNews struct {
	health *dpu.Health
	err    error
}

// followHealth tells of each health that differs from the last one.
func (c *Controller) followHealth(ctx context.Context) (<-chan healthNews, error) {
	r, err := c.host.Health(ctx)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { r.Close() })
	news := make(chan healthNews)
	go func() {
		var last *dpu.Health
		for {
			h, err := r.Next()
			if err == nil && last != nil && sameHealth(h, last) {
				continue
			}
			last = h
			select {
			case news <- healthNews{h, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return news, nil
}

func sameHealth(a, b *dpu.Health) bool {
	x, y := *a, *b
	x.Representors, y.Representors = nil, nil
	return slices.Equal(a.Representors, b.Representors) && fmt.Sprint(x) == fmt.Sprint(y)
}

// openDatabase connects to the database, takes the controller's lock and follows the ports.
func (c *Controller) openDatabase(ctx context.Context) (*ovsdb.Client, *ovsdb.Monitor, error) {
	conn, err := c.host.Dial(ctx, dpu.OVSDB)
	if err != nil {
		return nil, nil, err
	}
	db := ovsdb.NewClient(conn)
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	locked, err := db.TryLock(limited, ports.ControllerLock)
	if err == nil && !locked {
		c.log.Warn("another controller controls the switch; waiting for its end")
		select {
		case <-db.Locked(ports.ControllerLock):
		case <-db.Ended():
			err = db.Err()
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	var monitor *ovsdb.Monitor
	if err == nil {
		limited, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		monitor, err = db.Monitor(limited, ports.Columns)
	}
	if err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	return db, monitor, nil
}
