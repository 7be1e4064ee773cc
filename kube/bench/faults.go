package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/bench/measure"
)

// restart kills the API server, and starts it again.
func (f *figures) restart(ctx context.Context) error {
	away, err := f.begin("API server away")
	if err != nil {
		return err
	}
	f.server.Server.Kill()
	if err := f.watching(ctx, away, "without a watch", 0); err != nil {
		return err
	}
	select {
	case <-time.After(f.o.down):
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := away.endAway(); err != nil {
		return err
	}
	back, err := f.beginAway("API server back")
	if err != nil {
		return err
	}
	f.server.Server.Start()
	if err := poll(ctx, f.server.Ready); err != nil { // all nodes connect meanwhile
		return err
	}
	back.add("ready", "", "ms", milliseconds(time.Since(back.began)))
	if err := errors.Join(f.watching(ctx, back, "with all watches", f.watches), back.end(true)); err != nil {
		return err
	}
	s, err := f.begin("policy changed after that")
	if err != nil {
		return err
	}
	return errors.Join(f.changePolicy(ctx, s), s.end(false))
}

// again kills the controllers of all nodes, and starts them all at once, as a cluster does whose
// nodes come back from a power failure. Pods and resources are as before.
func (f *figures) again(ctx context.Context) error {
	f.fleet.stop()
	s, err := f.begin("nodes restarted")
	if err != nil {
		return err
	}
	c := f.agents.await(f.o.pods, func(g *api.Grant) bool { return g.Refused == "" })
	if err := f.startNodes(); err != nil {
		return err
	}
	err = f.wait(ctx, s, c)
	if err == nil {
		err = f.watching(ctx, s, "with all watches", f.watches)
	}
	return errors.Join(err, s.end(true))
}

// countWatches notes how many watches each node has, once each has had as many.
func (f *figures) countWatches(ctx context.Context) error {
	most := map[string]int64{} // by node
	err := poll(ctx, func() error {
		a, err := f.fleet.ask(askTraffic)
		if err != nil {
			return err
		}
		for name, t := range a.Nodes {
			most[name] = max(most[name], t.Watches)
			f.watches = max(f.watches, t.Watches)
		}
		for name, n := range most {
			if n < f.watches {
				return fmt.Errorf("%s has %d watches, and another node %d", name, n, f.watches)
			}
		}
		return nil
	})
	f.report.Add(measure.Metric{Test: "install", Name: "watches of a node"}, "", float64(f.watches))
	return err
}

// watching waits until each node has had so many watches since the stage began, and adds how many nodes
// have, and when. A watch that ends and is opened anew is the reason not to want all at the same time.
func (f *figures) watching(ctx context.Context, s *stage, what string, want int64) error {
	first := map[string]time.Duration{}              // by node
	err := pollEach(ctx, time.Second, func() error { // each look costs CPU time
		a, err := f.fleet.ask(askTraffic)
		if err != nil {
			return err
		}
		for name, t := range a.Nodes {
			if _, has := first[name]; !has && t.Watches == want {
				first[name] = time.Since(s.began)
			}
		}
		if n := f.o.nodes - len(first); n > 0 {
			return fmt.Errorf("%d nodes have not had %d watches", n, want)
		}
		return nil
	})
	s.add("nodes "+what, "", "", float64(len(first)))
	s.addEach("a node is "+what, first)
	return err
}
