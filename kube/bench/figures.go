package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/kube/kubetest"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// figures measures one thing after another, in the order of run.
type figures struct {
	*world
	report *measure.Report
	round  int // of destinations of the first namespace's policy
	// watches is how many watches a node has.
	watches int64
}

func (f *figures) run(ctx context.Context) error {
	for _, figure := range []struct {
		name  string
		times int
		do    func(context.Context) error
	}{
		{"install", 1, f.install},
		{"idle", 1, f.idle},
		{"policy changed", f.o.rounds, f.policy},
		{"unused endpoint changed", f.o.rounds, f.unused},
		{"endpoint withdrawn", f.o.rounds, f.withdraw},
		{"memory", 1, f.memory},
		{"API server restarted", 1, f.restart},
		{"nodes restarted", 1, f.again},
	} {
		began := time.Now()
		for range figure.times {
			if err := figure.do(ctx); err != nil {
				return fmt.Errorf("%s: %w", figure.name, err)
			}
		}
		fmt.Fprintf(f.progress, "%s: %.0f s\n", figure.name, time.Since(began).Seconds())
		f.report.Finish(nil)
		if f.o.output.File == "" {
			continue
		}
		if err := f.report.WriteFile(f.o.output.File); err != nil { // for a run that fails later
			return err
		}
	}
	return nil
}

// wait waits until all pods have the right grant.
func (f *figures) wait(ctx context.Context, c *change) error {
	select {
	case <-c.done:
		return nil
	case <-time.After(pollLimit):
		return fmt.Errorf("%d of %d pods have the right grant", f.agents.has(c), c.want)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// given tells whether a grant has both rules, and the egress rule a destination.
func given(g *api.Grant, to string) bool {
	r := g.Containers["nginx"]
	return g.Refused == "" && len(r.Ingress) == 1 && len(r.Egress) == 1 && strings.HasPrefix(r.Egress[0], to+"=")
}

// install starts the controllers of all nodes, in a cluster that runs all pods.
func (f *figures) install(ctx context.Context) error {
	s, err := f.begin("install")
	if err != nil {
		return err
	}
	c := f.agents.await(f.o.pods, func(g *api.Grant) bool { return given(g, destination(0)) })
	if err := f.startNodes(); err != nil {
		return err
	}
	f.t.Cleanup(f.fleet.stop)
	if err := f.wait(ctx, c); err != nil {
		return err
	}
	s.converged(c)
	if err := f.written(ctx, s, c, f.o.pods); err != nil {
		return err
	}
	if err := s.end(true); err != nil {
		return err
	}
	return f.countWatches(ctx)
}

// idle is a time in which nothing changes but what kwok writes.
func (f *figures) idle(ctx context.Context) error {
	s, err := f.begin("idle")
	if err != nil {
		return err
	}
	select {
	case <-time.After(f.o.idle):
	case <-ctx.Done():
		return ctx.Err()
	}
	return s.end(false)
}

// policy changes the first namespace's policy.
func (f *figures) policy(ctx context.Context) error {
	s, err := f.begin("policy changed")
	if err != nil {
		return err
	}
	c, err := f.changePolicy(ctx)
	if err != nil {
		return err
	}
	s.converged(c)
	// One event is the policy's, and one its status's.
	if err := f.eachNode(ctx, s, "graftpolicies", 2); err != nil {
		return err
	}
	return s.end(false)
}

// changePolicy gives all pods of the first namespace another destination.
func (f *figures) changePolicy(ctx context.Context) (*change, error) {
	f.round++
	to := destination(f.round)
	c := f.agents.await(f.podsPerNamespace(), func(g *api.Grant) bool { return given(g, to) })
	p := &v1alpha1.GraftPolicy{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: namespaceName(0)}}
	err := f.patch(ctx, p, fmt.Sprintf(`{"spec": {"egress": [{"endpoint": %q, "to": [%q]}]}}`, endpointName(1), to))
	if err == nil {
		err = f.wait(ctx, c)
	}
	return c, err
}

// unused changes an endpoint that no policy names. All nodes hear of it, and none has anything to do.
func (f *figures) unused(ctx context.Context) error {
	s, err := f.begin("unused endpoint changed")
	if err != nil {
		return err
	}
	f.round++
	e := &v1alpha1.GraftEndpoint{ObjectMeta: metav1.ObjectMeta{Name: endpointName(f.o.endpoints - 1)}}
	if err := f.patch(ctx, e, fmt.Sprintf(`{"spec": {"destinations": [{"cidr": %q}]}}`, destination(f.round))); err != nil {
		return err
	}
	if err := f.eachNode(ctx, s, "graftendpoints", 2); err != nil {
		return err
	}
	return s.end(false)
}

// withdraw takes the last namespace's endpoint away from its pods, and gives it back.
func (f *figures) withdraw(ctx context.Context) error {
	last := f.o.namespaces - 1
	e := &v1alpha1.GraftEndpoint{ObjectMeta: metav1.ObjectMeta{Name: endpointName(1 + last)}}
	for _, step := range []struct{ name, label string }{{"endpoint withdrawn", "nobody"}, {"endpoint given back", "shop"}} {
		s, err := f.begin(step.name)
		if err != nil {
			return err
		}
		c := f.agents.await(f.podsPerNamespace(), func(g *api.Grant) bool { return (g.Refused == "") == (step.label == "shop") })
		err = f.patch(ctx, e, fmt.Sprintf(`{"spec": {"allowedPods": [{"namespaceSelector": {"matchLabels": {"team": %q}}}]}}`, step.label))
		if err == nil {
			err = f.wait(ctx, c)
		}
		if err != nil {
			return err
		}
		s.converged(c)
		if err := f.written(ctx, s, c, f.podsPerNamespace()); err != nil {
			return err
		}
		if err := s.end(false); err != nil {
			return err
		}
	}
	return nil
}

// memory is that of processes at rest.
func (f *figures) memory(context.Context) error {
	add := func(name, mode string, bytes uint64) {
		f.report.Add(measure.Metric{Test: "memory", Name: name, Unit: "MiB"}, mode, float64(bytes)/(1<<20))
	}
	all, err := f.fleet.ask(askMemory)
	if err != nil {
		return err
	}
	add("resident", "all nodes", all.RSS)
	add("resident", "a node", all.RSS/uint64(f.o.nodes))
	add("heap", "a node", all.Heap/uint64(f.o.nodes))
	own, err := f.fleet.processes[len(f.fleet.processes)-1].ask(askMemory)
	if err != nil {
		return err
	}
	add("heap", "a process of one node", own.Heap)
	add("resident, garbage collected", "a process of one node", own.RSS)
	for name, p := range map[string]*kubetest.Process{"kube-apiserver": f.server.Server, "etcd": f.server.Etcd, "agent": f.agent} {
		if p == nil {
			continue
		}
		rss, err := resident(p.PID())
		if err != nil {
			return err
		}
		add("resident", name, rss)
	}
	return nil
}

// restart kills the API server, and starts it again.
func (f *figures) restart(ctx context.Context) error {
	away, err := f.begin("API server away")
	if err != nil {
		return err
	}
	f.server.Server.Kill()
	if err := f.watching(ctx, 0); err != nil {
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
	f.server.Await()
	began := time.Now()
	back.add("ready", "", "ms", milliseconds(began.Sub(back.began)))
	if err := f.watching(ctx, f.watches); err != nil {
		return err
	}
	back.add("all watches open", "after ready", "ms", milliseconds(time.Since(began)))
	if err := back.end(true); err != nil {
		return err
	}
	s, err := f.begin("policy changed after that")
	if err != nil {
		return err
	}
	c, err := f.changePolicy(ctx)
	if err != nil {
		return err
	}
	s.converged(c)
	return s.end(false)
}

// countWatches notes how many watches each node has, once that is the same number for all.
func (f *figures) countWatches(ctx context.Context) error {
	err := poll(ctx, func() error {
		a, err := f.fleet.ask(askTraffic)
		if err != nil {
			return err
		}
		f.watches = a.Nodes[nodeName(0)].Watches
		for name, t := range a.Nodes {
			if t.Watches != f.watches {
				return fmt.Errorf("%s has %d watches, and %s %d", name, t.Watches, nodeName(0), f.watches)
			}
		}
		return nil
	})
	f.report.Add(measure.Metric{Test: "install", Name: "watches of a node"}, "", float64(f.watches))
	return err
}

// watching waits until each node has so many watches.
func (f *figures) watching(ctx context.Context, want int64) error {
	return poll(ctx, func() error {
		a, err := f.fleet.ask(askTraffic)
		if err != nil {
			return err
		}
		others := 0
		for _, t := range a.Nodes {
			if t.Watches != want {
				others++
			}
		}
		if others > 0 {
			return fmt.Errorf("%d nodes do not have %d watches", others, want)
		}
		return nil
	})
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
	if err := f.wait(ctx, c); err != nil {
		return err
	}
	s.converged(c)
	if err := f.watching(ctx, f.watches); err != nil {
		return err
	}
	return s.end(true)
}

// written waits until the conditions of so many pods are written after a change, and nothing else is
// written any more, and adds when that was.
func (f *figures) written(ctx context.Context, s *stage, c *change, pods int) error {
	before, at := -1.0, time.Time{}
	return poll(ctx, func() error {
		a, err := f.fleet.ask(askTraffic)
		if err != nil {
			return err
		}
		if n := done(s.since(total(&a)), "UPDATE pods/status"); n < int64(pods) {
			return fmt.Errorf("%d of %d conditions are written", n, pods)
		}
		m, err := f.server.Metrics()
		if err != nil {
			return err
		}
		if now := writes(m); now != before {
			before, at = now, time.Now()
			time.Sleep(quiet)
			return fmt.Errorf("%v writes until now", now)
		}
		s.add("all written", "", "ms", milliseconds(at.Sub(c.began)))
		return nil
	})
}

// quiet is how long nothing is written when all is.
const quiet = time.Second

// eachNode waits until each node has heard of so many changes of one of our resources.
func (f *figures) eachNode(ctx context.Context, s *stage, resource string, events int64) error {
	heard := func(t traffic) int64 {
		return t.Calls[watchVerb+" "+resource].Lines + t.Calls[watchListVerb+" "+resource].Lines // which goes on as a watch
	}
	return poll(ctx, func() error {
		a, err := f.fleet.ask(askTraffic)
		if err != nil {
			return err
		}
		for name, t := range a.Nodes {
			if n := heard(t) - heard(s.before.Nodes[name]); n < events {
				return fmt.Errorf("%s has heard of %d changes, want %d", name, n, events)
			}
		}
		return nil
	})
}
