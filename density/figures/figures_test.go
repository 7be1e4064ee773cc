package figures

import (
	"context"
	"log/slog"
	"slices"
	"testing"

	"github.com/tsugiki/tsugiki/density/rig"
	"github.com/tsugiki/tsugiki/density/sweep"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// measure makes all steps of an experiment once, in a rig of its own, and returns their samples.
func measure(t *testing.T, name string, o *sweep.Options) []sweep.Sample {
	t.Helper()
	t.Setenv(binEnv, testkit.BuildTsugiki(t))
	p := plan(t, name, o)
	p.Rig.Dir = t.TempDir()
	r, err := rig.New(p.Rig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	if p.Prepare != nil {
		if err := p.Prepare(limited(t), r); err != nil {
			t.Fatal(err)
		}
	}
	var samples []sweep.Sample
	keys := make(map[string]bool)
	for _, s := range p.Steps {
		if keys[s.Key] {
			t.Errorf("step %s is there twice", s.Key)
		}
		keys[s.Key] = true
		more, err := s.Run(limited(t), &sweep.Env{Rig: r, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatalf("step %s: %v", s.Key, err)
		}
		for _, m := range more {
			// The memory of a few containers is less than the changes of the machine's.
			if m.Value <= 0 && m.Figure != figureMemory {
				t.Errorf("step %s: %+v", s.Key, m)
			}
		}
		samples = append(samples, more...)
	}
	return samples
}

func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*testkit.Patience)
	t.Cleanup(cancel)
	return ctx
}

func plan(t *testing.T, name string, o *sweep.Options) *sweep.Plan {
	t.Helper()
	for _, e := range All() {
		if e.Name() != name {
			continue
		}
		p, err := e.Plan(o)
		if err != nil {
			t.Fatal(err)
		}
		if p.Figure.Name != name || p.Figure.Title == "" || len(p.Figure.Notes) == 0 || p.Figure.X.Label == "" || p.Figure.Y.Unit == "" {
			t.Errorf("figure %+v", p.Figure)
		}
		return p
	}
	t.Fatalf("no experiment is called %s", name)
	return nil
}

func options(n int) *sweep.Options {
	return &sweep.Options{Max: n, Quick: true, Runtimes: []string{"runc"}, Seed: 1}
}

// find returns the sample of a series at an X, with such labels.
func find(t *testing.T, samples []sweep.Sample, series string, x float64, category string, labels ...string) sweep.Sample {
	t.Helper()
	i := slices.IndexFunc(samples, func(s sweep.Sample) bool {
		same := s.Series == series && s.X == x && s.Category == category
		for i := 0; i < len(labels); i += 2 {
			same = same && s.Labels[labels[i]] == labels[i+1]
		}
		return same
	})
	if i < 0 {
		t.Fatalf("no sample of %s at %v%s with %v", series, x, category, labels)
	}
	return samples[i]
}

func wantExtra(t *testing.T, s sweep.Sample, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, found := s.Extra[name]; !found {
			t.Errorf("%s has no %s: %v", s.Series, name, s.Extra)
		}
	}
}

func TestCPU(t *testing.T) {
	samples := measure(t, "cpu", options(2))
	for _, quota := range []string{"none", "its part"} {
		for _, n := range []float64{1, 2} {
			total := find(t, samples, "total", n, "", "quota", quota)
			each := find(t, samples, "each", n, "", "quota", quota)
			wantExtra(t, total, "psi_cpu", "softirq_share", "nr_throttled")
			if got := each.Value * n; got < 0.99*total.Value || got > 1.01*total.Value {
				t.Errorf("%v containers of %v are not %v", n, each.Value, total.Value)
			}
			if float64(len(total.Each)) != n {
				t.Errorf("%v containers have %v", n, total.Each)
			}
		}
	}
	// Whether a quota throttles depends on what else the machine does.
	if s := find(t, samples, "total", 2, "", "quota", "none"); s.Extra["nr_throttled"] != 0 {
		t.Errorf("%v periods were throttled without a quota", s.Extra["nr_throttled"])
	}
}

func TestIO(t *testing.T) {
	testkit.Program(t, "fio")
	o := options(0)
	o.Storages = []string{rig.Overlay}
	samples := measure(t, "io", o)
	for _, m := range mixtures {
		wantExtra(t, find(t, samples, "reading", 0, m.category), "p50", "p99", "psi_io")
	}
}

func TestIODensity(t *testing.T) {
	testkit.Program(t, "fio")
	o := options(2)
	o.Storages = []string{rig.Dir}
	samples := measure(t, "io-density", o)
	find(t, samples, "total", 2, "")
	find(t, samples, "each", 1, "")
}

func TestWeb(t *testing.T) {
	o := options(2)
	o.Networks = allNetworks
	samples := measure(t, "web", o)
	for _, network := range allNetworks {
		for _, client := range []string{"", ", static client"} {
			wantExtra(t, find(t, samples, "total"+client, 2, "", "network", network), "p50", "p99")
		}
	}
}

func TestWebRandom(t *testing.T) {
	o := options(3)
	o.Networks = []string{rig.Host, rig.Bridge, rig.Graft}
	samples := measure(t, "web-random", o)
	for _, network := range o.Networks {
		wantExtra(t, find(t, samples, "response", 3, "", "network", network), "softirq_share", "requests_per_s")
	}
	o.Networks = []string{rig.None}
	if _, err := planWebRandom(o); err == nil {
		t.Error("containers without a network are to be asked from outside")
	}
}

func TestOverlay(t *testing.T) {
	for name, targets := range map[string]int{"overlay-create": 4, "overlay-delete": 3} {
		if samples := measure(t, name, options(0)); len(samples) != targets {
			t.Errorf("%s: %d samples, want %d", name, len(samples), targets)
		}
	}
}

// TestRamp measures three figures at once.
func TestRamp(t *testing.T) {
	samples := measure(t, figureNetwork, options(2))
	for _, network := range allNetworks {
		for _, series := range []string{"start", "stop"} {
			wantExtra(t, find(t, samples, series, 2, "", "network", network), "rate_per_s")
			find(t, samples, series, 1, "", "network", network)
		}
		// Not how much: other processes of the same binaries share their pages.
		wantExtra(t, find(t, samples, "memory", 2, "", "network", network), "pss_kib", "slab_kib", "kernel_kib", "available_kib")
		wantExtra(t, find(t, samples, "start", 0, network), "memory_kib", "pss_kib", "kernel_kib", "stop_p99_ms")
	}
	steps := plan(t, figureNetwork, options(2)).Steps
	for _, name := range []string{figureStart, figureMemory} {
		for i, step := range plan(t, name, options(2)).Steps {
			if step.Same == "" || step.Same != steps[i].Same || step.Key != steps[i].Key {
				t.Errorf("%s has step %s, %s has %s", name, step.Key, figureNetwork, steps[i].Key)
			}
		}
		if !slices.ContainsFunc(samples, func(s sweep.Sample) bool { return s.Figure == name }) {
			t.Errorf("%s has no sample", name)
		}
	}
}

// The CPU time of a neighbour and its logger is measured with charging and without. The study (make
// test-density) checks whether it stays within the neighbour's quota, because a busy machine
// cannot.
func TestNoisyLogger(t *testing.T) {
	samples := measure(t, "noisy-logger", options(0))
	used := func(others neighbours) float64 {
		s := find(t, samples, string(others), 2, "")
		wantExtra(t, s, "cpu_of_quota", "nr_throttled", "psi_cpu")
		return s.Extra["others_of_quota"]
	}
	if off, on := used(uncharged), used(charged); on <= 0 || off <= 0 {
		t.Errorf("a container and its logger used %.2f of its quota with charging, %.2f without", on, off)
	}
}
