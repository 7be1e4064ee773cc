package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// What -only selects. Without it, changes and faults are measured.
const (
	changes = "changes"
	faults  = "faults"
	watches = "watches"
)

// figure is one of them.
type figure struct {
	name  string
	of    []string // what -only selects it
	times int
	do    func(context.Context) error
}

func (f *figures) run(ctx context.Context) error {
	for _, g := range []figure{
		{"install", []string{changes, faults}, 1, f.install},
		{"idle", []string{changes}, 1, f.idle},
		{"policy changed", []string{changes}, f.o.rounds, f.policy},
		{"unused endpoint changed", []string{changes}, f.o.rounds, f.unused},
		{"endpoint withdrawn", []string{changes}, f.o.rounds, f.withdraw},
		{"memory", []string{changes}, 1, f.memory},
		{"API server restarted", []string{faults}, 1, f.restart},
		{"nodes restarted", []string{faults}, 1, f.again},
		{"watches", []string{watches}, 1, f.watchesByName},
	} {
		if f.o.only != "" && !slices.Contains(g.of, f.o.only) || f.o.only == "" && slices.Contains(g.of, watches) {
			continue
		}
		began := time.Now()
		if err := f.limited(ctx, &g); err != nil {
			return fmt.Errorf("%s: %w", g.name, err)
		}
		fmt.Fprintf(f.progress, "%s: %.0f s\n", g.name, time.Since(began).Seconds())
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

// limited measures a figure. If one time takes longer than the limit, it says so in the report, and that
// was the last time.
func (f *figures) limited(ctx context.Context, g *figure) error {
	for range g.times {
		limited, cancel := context.WithTimeout(ctx, f.o.limit)
		err := g.do(limited)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			f.report.Note("%s: not done after %v: %s", g.name, f.o.limit, strings.ReplaceAll(err.Error(), "\n", ": "))
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// wait waits until all pods have the right grant, and adds when those of each node were put.
func (f *figures) wait(ctx context.Context, s *stage, c *change) (err error) {
	select {
	case <-c.done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	pods, nodes := f.agents.has(c)
	if err != nil {
		err = fmt.Errorf("%d of %d pods have the right grant: %w", pods, c.want, err)
	}
	s.add("nodes that put grants", "", "", float64(len(nodes)))
	s.addEach("last grant of a node put", nodes)
	return err
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
	err = f.wait(ctx, s, c)
	if err == nil {
		err = f.written(ctx, s, c, f.o.pods)
	}
	return errors.Join(err, s.end(true), f.countWatches(ctx))
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
	if err := f.changePolicy(ctx, s); err != nil {
		return err
	}
	// One event is the policy's, and one its status's.
	if err := f.eachNode(ctx, s, "graftpolicies", 2); err != nil {
		return err
	}
	return s.end(false)
}

// changePolicy gives all pods of the first namespace another destination.
func (f *figures) changePolicy(ctx context.Context, s *stage) error {
	f.round++
	to := destination(f.round)
	c := f.agents.await(f.podsPerNamespace(), func(g *api.Grant) bool { return given(g, to) })
	p := &v1alpha1.GraftPolicy{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: namespaceName(0)}}
	err := f.patch(ctx, p, fmt.Sprintf(`{"spec": {"egress": [{"endpoint": %q, "to": [%q]}]}}`, endpointName(1), to))
	if err == nil {
		err = f.wait(ctx, s, c)
	}
	return err
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
			err = f.wait(ctx, s, c)
		}
		if err == nil {
			err = f.written(ctx, s, c, f.podsPerNamespace())
		}
		if err := errors.Join(err, s.end(false)); err != nil {
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
		m, err := f.metrics()
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
