package figures

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tsugiki/tsugiki/density/load"
	"github.com/tsugiki/tsugiki/density/result"
	"github.com/tsugiki/tsugiki/density/rig"
	"github.com/tsugiki/tsugiki/density/sweep"
)

// studyMost is the largest number of containers in the study.
const studyMost = 300

// ramp is a growing number of containers, started one after the other. Each runs a minimal web
// server with a port on the network.
type ramp struct {
	rig     *rig.Rig
	variant variant
	said    func(doing string, containers int)
	members []*rig.Container
	started []float64 // milliseconds
}

// grow starts containers until there are n.
func (r *ramp) grow(ctx context.Context, n int) error {
	for i := len(r.members); i < n; i++ {
		port := portOf(r.variant, i)
		s := r.variant.spec(i, inside(load.Serve(port))...)
		s.Ready, s.Ports = load.Ready, []uint16{port}
		c, err := r.rig.Start(ctx, s)
		if err != nil {
			return err
		}
		r.members, r.started = append(r.members, c), append(r.started, milliseconds(c.Started()))
		r.said("started", len(r.members))
	}
	return nil
}

// check makes requests to all containers from outside. So a network that does not work is not
// counted.
func (r *ramp) check(ctx context.Context) error {
	if r.variant.network == rig.None {
		return nil
	}
	loader, err := findLoad()
	if err != nil {
		return err
	}
	args := append([]string{loader}, load.Web(2*len(r.members), 1)...)
	for i, c := range r.members {
		args = append(args, c.Address(portOf(r.variant, i)))
	}
	out, err := r.rig.Outside(ctx, args...)
	if err == nil {
		_, err = answered(load.ParseWeb(out))
	}
	if err != nil {
		return fmt.Errorf("ask %d containers from outside: %w", len(r.members), err)
	}
	return nil
}

// shrink stops the containers above n, the newest first. It returns the time of each stop in
// milliseconds, in that order.
func (r *ramp) shrink(ctx context.Context, n int) ([]float64, error) {
	var took []float64
	for i := len(r.members) - 1; i >= n; i-- {
		d, err := r.members[i].Stop(ctx)
		if err != nil {
			return nil, err
		}
		r.members = r.members[:i]
		took = append(took, milliseconds(d))
		r.said("stopped", len(r.started)-i)
	}
	return took, nil
}

// end stops the remaining containers after an error, except after an interrupt: the rig's end is
// faster.
func (r *ramp) end(ctx context.Context) error {
	if ctx.Err() != nil {
		return nil
	}
	_, err := r.shrink(ctx, 0)
	return err
}

// warm makes what all containers of a variant share (the agent, the bridge) before anything is
// measured.
func warm(ctx context.Context, r *rig.Rig, v variant) error {
	one := ramp{rig: r, variant: v, said: func(string, int) {}}
	return errors.Join(one.grow(ctx, 1), one.end(ctx))
}

// stages returns the numbers of containers at which a ramp is measured.
func stages(most int) []int {
	list := slices.DeleteFunc([]int{1, 10, 50, 100, 200, 300}, func(n int) bool { return n >= most })
	return append(list, most)
}

// allNetworks is in the order of the expected costs.
var allNetworks = []string{rig.None, rig.Host, rig.Graft, rig.Bridge}

// planRamp plans a figure about containers that are started one after the other. All such figures
// have the same steps, which are made once for all of them.
func planRamp(o *sweep.Options, f *result.Figure) (*sweep.Plan, []variant, error) {
	loader, err := findLoad()
	if err != nil {
		return nil, nil, err
	}
	list, n := variants(o, allNetworks, []string{rig.Overlay}), largest(o, studyMost)
	tools, err := networkTools(list)
	if err != nil {
		return nil, nil, err
	}
	p := &sweep.Plan{
		Figure: f, Rounds: rounds(o), Containers: n, Prepare: prepare(loader), Tools: tools,
		Room: rig.Room{Memory: 1 << 20, Processes: 2, Connections: 2},
	}
	p.Network, p.Storage = most(list)
	wait := waitOf(o)
	for _, v := range list {
		p.Steps = append(p.Steps, sweep.Step{
			Key: v.key(n), Same: "ramp/" + v.key(n), Seconds: rampSeconds(n, wait),
			Run: func(ctx context.Context, e *sweep.Env) ([]sweep.Sample, error) {
				return climb(ctx, e, v, stages(n), wait)
			},
		})
	}
	return p, list, nil
}

const rampNote = "Containers are started one after the other and stay. In each is a static web server of 70 KB, and it has started when that " +
	"says that it listens. Afterwards all are asked from another network namespace, and stopped. Docker's seccomp profile and capabilities. " +
	"The figures start, memory and network are about the same containers."

func planStart(o *sweep.Options) (*sweep.Plan, error) {
	p, list, err := planRamp(o, &result.Figure{
		Title: "Starting and stopping containers while others are there",
		X:     result.Axis{Label: "containers", Log: true},
		Y:     result.Axis{Label: "median", Unit: "ms", Better: result.Lower},
		Notes: []string{
			rampNote,
			"A point is about the containers since the point before. rate_per_s is how many were started, or stopped, in a second of the runtime's.",
			"Stopping is from the kill until container, network and root file system are removed, the last started first.",
		},
	})
	if err == nil {
		order(p.Figure, list, "start", "stop")
	}
	return p, err
}

// The figures that a ramp has samples of.
const figureStart, figureMemory, figureNetwork = "start", "memory", "network"

// climb starts containers in stages, measures the resources that they use, and stops them.
func climb(ctx context.Context, e *sweep.Env, v variant, stages []int, wait time.Duration) (samples []sweep.Sample, err error) {
	r, most := e.Rig, stages[len(stages)-1]
	if err := warm(ctx, r, v); err != nil {
		return nil, err
	}
	before, err := measureMemory(ctx, r, wait)
	if err != nil {
		return nil, err
	}
	turns, waited := 0, wait
	all := ramp{rig: r, variant: v, said: func(doing string, containers int) {
		turns++
		e.Say(fmt.Sprintf("%d of %d containers %s", containers, most, doing), (waited.Seconds()+secondsEach*float64(turns))/rampSeconds(most, wait))
	}}
	defer func() {
		err = errors.Join(err, all.end(ctx))
		r.EndAgent()
	}()
	network := sweep.Sample{Figure: figureNetwork, Series: "start", Labels: v.withoutNetwork(), Category: v.network}
	for _, n := range stages {
		there := len(all.members)
		if err := all.grow(ctx, n); err != nil {
			return samples, err
		}
		samples = append(samples, lifeSample(v, "start", n, all.started[there:]))
		if n < min(most, fewest) {
			continue
		}
		after, err := measureMemory(ctx, r, wait)
		if err != nil {
			return samples, err
		}
		waited += wait
		value, extra := after.each(before, n)
		samples = append(samples, sweep.Sample{Figure: figureMemory, Series: "memory", Labels: v.labels, X: float64(n), Value: value, Extra: extra})
		network.Extra = maps.Clone(extra)
		network.Extra["memory_kib"] = value
	}
	if err := all.check(ctx); err != nil {
		return samples, err
	}
	var stopped []float64
	for i := len(stages) - 1; i >= 0; i-- {
		below := 0
		if i > 0 {
			below = stages[i-1]
		}
		took, err := all.shrink(ctx, below)
		if err != nil {
			return samples, err
		}
		samples = append(samples, lifeSample(v, "stop", stages[i], took))
		stopped = append(stopped, took...)
	}
	network.Value, network.Events = result.Percentile(all.started, 99), all.started
	network.Extra["stop_p50_ms"], network.Extra["stop_p99_ms"] = result.Median(stopped), result.Percentile(stopped, 99)
	return append(samples, network), nil
}

// lifeSample returns the time that each container of a stage took to start or to stop.
func lifeSample(v variant, series string, containers int, took []float64) sweep.Sample {
	return sweep.Sample{
		Figure: figureStart, Series: series, Labels: v.labels, X: float64(containers), Value: result.Median(took), Events: took,
		Extra: map[string]float64{"rate_per_s": 1000 / mean(took)},
	}
}

// fewest is the smallest number of containers whose memory is measured. The memory of fewer
// containers is less than the changes of the rest of the machine.
const fewest = 10

// settle is the pause without starts and stops before memory is read. In that time the kernel frees
// memory after a grace period of RCU, and idle helpers exit. A gate exits after it was idle for 3
// s.
const (
	settle      = 5 * time.Second
	quickSettle = 100 * time.Millisecond
)

// rampSeconds is roughly the time of a ramp: starts, stops, and pauses.
func rampSeconds(most int, wait time.Duration) float64 {
	looks := 1
	for _, stage := range stages(most) {
		if stage >= min(most, fewest) {
			looks++
		}
	}
	return 2*seconds(most) + float64(looks)*wait.Seconds()
}

func waitOf(o *sweep.Options) time.Duration {
	if o.Quick {
		return quickSettle
	}
	return settle
}

// usage is a machine's use of memory by purpose, in KiB.
type usage struct{ processes, agent, slab, kernel, available float64 }

func measureMemory(ctx context.Context, r *rig.Rig, wait time.Duration) (usage, error) {
	select {
	case <-time.After(wait):
	case <-ctx.Done():
		return usage{}, ctx.Err()
	}
	m, err := r.Memory()
	kib := func(bytes int64) float64 { return float64(bytes) / 1024 }
	return usage{kib(m.Processes), kib(m.Agent), kib(m.Slab), kib(m.Kernel), kib(m.Available)}, err
}

// each returns the memory that n containers have added, divided by n. The sum of processes and
// kernel is the cost of a container: kernel contains slab, except its reclaimable part. available
// shows the same cost from the whole machine's view.
func (u usage) each(before usage, n int) (float64, map[string]float64) {
	of := func(after, before float64) float64 { return (after - before) / float64(n) }
	pss, kernel := of(u.processes, before.processes), of(u.kernel, before.kernel)
	return pss + kernel, map[string]float64{
		"pss_kib": pss, "agent_kib": of(u.agent, before.agent), "slab_kib": of(u.slab, before.slab), "kernel_kib": kernel,
		"available_kib": of(before.available, u.available),
	}
}

func memoryNote(o *sweep.Options) string {
	return "Memory is what all containers have added, divided by their number: PSS of all processes that are there for them " +
		"(pss_kib; the agent's part is agent_kib), and what the kernel cannot give back (kernel_kib: unreclaimable slab, page tables, per-CPU, vmalloc with stacks). " +
		"slab_kib is all slab; available_kib is how much less memory the machine then has available. What the first container alone brings, agent or bridge, is there before. " +
		fmt.Sprintf("It is read %v after the last start, before as after and with all networks.", waitOf(o))
}

func planMemory(o *sweep.Options) (*sweep.Plan, error) {
	p, list, err := planRamp(o, &result.Figure{
		Title: "Memory for each container",
		X:     result.Axis{Label: "containers", Log: true},
		Y:     result.Axis{Label: "processes and kernel", Unit: "KiB", Better: result.Lower},
		Notes: []string{rampNote, memoryNote(o)},
	})
	if err == nil {
		order(p.Figure, list, "memory")
	}
	return p, err
}

func planNetwork(o *sweep.Options) (*sweep.Plan, error) {
	p, list, err := planRamp(o, &result.Figure{
		Title: fmt.Sprintf("What networking costs %d containers", largest(o, studyMost)),
		X:     result.Axis{Label: "network"},
		Y:     result.Axis{Label: "p99 of starting", Unit: "ms", Better: result.Lower},
		Notes: []string{
			rampNote, memoryNote(o),
			"bridge is veth, bridge and NAT with a published port by the CNI plugins; graft is Tsugiki's runtime and agent; host is the host's own " +
				"namespace; none has a loopback only.",
		},
	})
	if err != nil {
		return nil, err
	}
	for _, v := range list {
		p.Figure.Line("start", v.withoutNetwork()).In(v.network)
	}
	return p, nil
}

// withoutNetwork returns the labels for a figure whose categories are networks.
func (v variant) withoutNetwork() map[string]string {
	labels := maps.Clone(v.labels)
	delete(labels, "network")
	return labels
}
