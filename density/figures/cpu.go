package figures

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"time"

	"github.com/tsugiki/tsugiki/density/load"
	"github.com/tsugiki/tsugiki/density/result"
	"github.com/tsugiki/tsugiki/density/rig"
	"github.com/tsugiki/tsugiki/density/sweep"
)

const (
	studyCPU = 64
	// stencilMemory is the size of the kernel's three grids in bytes.
	stencilMemory = 8 << 20
	// leastCPU is the CPU time that a container should use at least, so that it takes more than a
	// few of the scheduler's slices.
	leastCPU = 100 * time.Millisecond
)

func planCPU(o *sweep.Options) (*sweep.Plan, error) {
	loader, err := findLoad()
	if err != nil {
		return nil, err
	}
	list, n := variants(o, []string{rig.None}, []string{rig.Overlay}), largest(o, studyCPU)
	p := &sweep.Plan{Rounds: rounds(o), Containers: n, Room: rig.Room{Memory: stencilMemory, Processes: 4}, Prepare: prepare(loader)}
	p.Network, p.Storage = most(list)
	p.Figure = &result.Figure{
		Title: "Computing: a Jacobi stencil in every container at once",
		Study: "Each container's speed was inverse to the number of containers beyond the cores; the total stayed flat.",
		X:     result.Axis{Label: "containers", Log: true},
		Y:     result.Axis{Label: "speed", Unit: "MFLOPS", Log: true, Better: result.Higher},
		Notes: []string{
			"A 3-D Poisson problem by Jacobi's method, seven points, 64 × 64 × 128 in single precision, ten operations per point " +
				"(the study ran the Himeno benchmark). Each run's residual is compared with the exact one.",
			"All begin at the same time and compute for the same time; speed is per second of wall time.",
			"With a quota, each container's is its part of the cores: a container that is throttled (nr_throttled) has then used it up.",
			"PSI is the part of the run in which some program waited, in percent.",
		},
	}
	for _, v := range list {
		for _, quota := range []bool{false, true} {
			order(p.Figure, []variant{{labels: withQuota(v, quota)}}, "total", "each")
		}
		for _, size := range doubling(n) {
			for _, quota := range []bool{false, true} {
				p.Steps = append(p.Steps, cpuStep(o, v, size, quota))
			}
		}
	}
	return p, nil
}

func withQuota(v variant, quota bool) map[string]string {
	labels := maps.Clone(v.labels)
	labels["quota"] = "none"
	if quota {
		labels["quota"] = "its part"
	}
	return labels
}

func cpuTime(o *sweep.Options, n int) time.Duration {
	if o.Quick {
		return time.Second
	}
	return max(3*time.Second, (leastCPU * time.Duration(n) / time.Duration(runtime.NumCPU())).Round(time.Second))
}

func cpuStep(o *sweep.Options, v variant, n int, quota bool) sweep.Step {
	took, labels, key, share := cpuTime(o, n), withQuota(v, quota), v.key(n)+"/free", 0.0
	if quota {
		key, share = v.key(n)+"/quota", min(1, float64(runtime.NumCPU())/float64(n))
	}
	run := func(ctx context.Context, e *sweep.Env) (samples []sweep.Sample, err error) {
		c, err := gather(ctx, e, n, func(i int) rig.Spec {
			s := v.spec(i, inside(load.Idle())...)
			s.Ready, s.Quota = load.Ready, share
			return s
		})
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, c.disperse(ctx)) }()
		out, extra, err := c.together(ctx, c.runners(), func(int) []string { return inside(load.Stencil(took)) })
		if err != nil {
			return nil, err
		}
		var speeds []float64
		for i, o := range out {
			r, err := load.ParseStencil(o)
			if err != nil {
				return nil, fmt.Errorf("container %d: %w", i, err)
			}
			speeds = append(speeds, r.MFLOPS)
		}
		return sharedOut(labels, n, speeds, extra), nil
	}
	return sweep.Step{Key: key, Variant: v.String(), Seconds: took.Seconds() + seconds(n), Run: run}
}

// sharedOut returns the samples of a quantity that containers share: the sum, and each container's
// part with the fairness.
func sharedOut(labels map[string]string, n int, values []float64, extra map[string]float64) []sweep.Sample {
	x := float64(n)
	return []sweep.Sample{
		{Series: "total", Labels: labels, X: x, Value: sum(values), Each: values, Extra: extra},
		{Series: "each", Labels: labels, X: x, Value: mean(values)},
	}
}

// seconds is roughly the time to start and stop containers.
func seconds(n int) float64 { return 0.5 + secondsEach*float64(n) }

const secondsEach = 0.25
